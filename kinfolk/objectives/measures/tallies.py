"""Tallies: what is kept of a model's answers, batch by batch, for metrics that are more than a sum and a count."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.models.model import Output
from kinfolk.objectives.measures.measure import of_tally

SHOWN = 12
"""The largest number of classes whose matrix is printed."""
POINTS = 600
"""The largest number of guesses that are drawn."""

Table = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
"""The names of columns, and rows."""


class Tally:
    """Counts of a model's answers, and the figures that follow: the measures that name one of its `names`."""

    names: ClassVar[tuple[str, ...]] = ()
    said: ClassVar[tuple[str, ...]] = ()
    """Figures that `sentences` has a line of its own for."""

    def add(self, output: Output, batch: Batch) -> None:
        """Take what a model said of a batch."""
        raise NotImplementedError

    def values(self) -> dict[str, float]:
        """Return the figures by the names of measures, the usual one first."""
        return {m.name: m.figure(self) for m in of_tally(self.names) if m.figure is not None}

    def plain(self) -> dict[str, Any]:
        """Return what was counted, as plain data."""
        return {name.replace("-", "_"): value for name, value in self.values().items()}

    def sentences(self) -> list[str]:
        """Return lines to print: here, the figures that no line of a subclass has."""
        return [f"{name:14} {value:.4f}" for name, value in self.values().items() if name not in self.said]

    def table(self) -> Table:
        """Return a table of classes for a report; empty where there are none."""
        return (), ()

    def matrix(self) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
        """Return classes, and how often each (row) was taken for each (column)."""
        return (), ()

    def points(self) -> list[list[float]]:
        """Return pairs of a guess and a label to draw."""
        return []


class ClassTally(Tally):
    """Tallies of classes: precision, recall and F1 of each follow from the counts of its labels and answers."""

    classes: Sequence[str]

    def hits(self) -> list[tuple[int, int, int]]:
        """Return of each class the numbers of its labels, of its answers, and of those that are both."""
        raise NotImplementedError

    @property
    def f1(self) -> list[float | None]:
        """The harmonic mean of precision and recall of each class; None of one that does not occur."""
        return [2 * both / (labels + answers) if labels + answers else None for labels, answers, both in self.hits()]

    @property
    def macro_f1(self) -> float:
        """The mean of `f1`."""
        known = [x for x in self.f1 if x is not None]
        return sum(known) / len(known) if known else 0.0

    def table(self) -> Table:
        """Return precision, recall and F1 of each class."""
        return COUNTED, tuple(counted(name, *hits) for name, hits in zip(self.classes, self.hits(), strict=True))


@dataclasses.dataclass
class Confusion(ClassTally):
    """How often each class (row) was taken for each (column).

    macro_f1 is the mean over the classes that occur among labels or answers, one that is never found counting 0; mcc is
    Matthews' correlation for many classes (Gorodkin 2004), 0 where all labels or all answers are one class.
    """

    names: ClassVar[tuple[str, ...]] = ("confusion",)
    said: ClassVar[tuple[str, ...]] = ("accuracy", "macro-f1", "mcc")

    classes: Sequence[str]
    counts_CC: Tensor

    def add(self, output: Output, batch: Batch) -> None:
        """Count the answers of a batch; where tokens are tagged, those that have a tag."""
        answers, labels = self.answers(output.logits), batch.labels if batch.targets is None else batch.targets
        assert labels is not None
        real, n = labels != IGNORE, len(self.counts_CC)
        pairs = (labels[real] * n + answers[real]).cpu()
        self.counts_CC += torch.bincount(pairs, minlength=n * n).view(n, n)

    def answers(self, logits: Tensor) -> Tensor:
        """Return the class that each row of scores says."""
        return logits.argmax(-1)

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return int(self.counts_CC.trace()) / max(1, int(self.counts_CC.sum()))

    def hits(self) -> list[tuple[int, int, int]]:
        sums = self.counts_CC.sum(1), self.counts_CC.sum(0), self.counts_CC.diagonal()
        return list(zip(*(x.tolist() for x in sums), strict=True))

    @property
    def mcc(self) -> float:
        """Matthews' correlation."""
        # products of counts need more digits than float32 has
        counts = self.counts_CC.double()
        n, hits, labels, answers = counts.sum(), counts.trace(), counts.sum(1), counts.sum(0)
        spread = (n * n - answers.square().sum()) * (n * n - labels.square().sum())
        return float((hits * n - (labels * answers).sum()) / spread.sqrt()) if spread > 0 else 0.0

    def plain(self) -> dict[str, Any]:
        rows = [
            {"name": name, "labels": labels, "answers": answers, "right": both, "f1": f1}
            for name, (labels, answers, both), f1 in zip(self.classes, self.hits(), self.f1, strict=True)
        ]
        return super().plain() | {"classes": rows, "confusion": self.counts_CC.tolist()}

    def sentences(self) -> list[str]:
        """Say it, the matrix where it fits on a screen."""
        lines = [f"macro-F1       {self.macro_f1:.4f}", f"MCC            {self.mcc:.4f}", *super().sentences()]
        if len(self.classes) > SHOWN:
            worst = sorted((x, name) for x, name in zip(self.f1, self.classes, strict=True) if x is not None)[:SHOWN]
            return [*lines, "lowest F1      " + ", ".join(f"{name} {x:.2f}" for x, name in worst)]
        width = max(6, *(len(name) for name in self.classes))
        lines.append("label \\ answer".ljust(width + 2) + "".join(name.rjust(width + 2) for name in self.classes))
        for name, row in zip(self.classes, self.counts_CC.tolist(), strict=True):
            lines.append(name.ljust(max(width + 2, 14)) + "".join(f"{count:,}".rjust(width + 2) for count in row))
        return lines

    def matrix(self) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
        return tuple(self.classes), tuple(tuple(row) for row in self.counts_CC.tolist())


@dataclasses.dataclass
class Holding(ClassTally):
    """Of each class how often it was rightly found (0), wrongly found (1) and missed (2)."""

    names: ClassVar[tuple[str, ...]] = ("multi-label",)
    said: ClassVar[tuple[str, ...]] = ("micro-f1", "macro-f1", "exact-match")

    classes: Sequence[str]
    counts_C3: Tensor
    n: int = 0
    whole: int = 0

    def add(self, output: Output, batch: Batch) -> None:
        """Count the answers of a batch."""
        assert batch.labels is not None
        found, holds = output.logits.cpu() > 0, batch.labels.cpu() > 0.5
        self.n += len(holds)
        self.whole += int((found == holds).all(1).sum())
        self.counts_C3 += torch.stack([found & holds, found & ~holds, ~found & holds], -1).sum(0)

    def hits(self) -> list[tuple[int, int, int]]:
        return [(hit + missed, hit + wrong, hit) for hit, wrong, missed in self.counts_C3.tolist()]

    @property
    def micro_f1(self) -> float:
        """Of all decisions together."""
        hit, wrong, missed = self.counts_C3.sum(0).tolist()
        return 2 * hit / max(1, 2 * hit + wrong + missed)

    @property
    def exact_match(self) -> float:
        """The share of examples of which every decision is right."""
        return self.whole / max(1, self.n)

    def plain(self) -> dict[str, Any]:
        rows = zip(self.classes, self.counts_C3.tolist(), self.f1, strict=True)
        each = [{"name": name, "right": a, "wrong": b, "missed": c, "f1": f1} for name, (a, b, c), f1 in rows]
        return super().plain() | {"classes": each}

    def sentences(self) -> list[str]:
        return [f"micro-F1       {self.micro_f1:.4f}", f"macro-F1       {self.macro_f1:.4f}", *super().sentences()]


@dataclasses.dataclass
class Correlation(Tally):
    """Moments of guesses and labels: their number, means, and sums of products of differences from the means.

    Ranks need all of them, so they are kept too: sixteen bytes an example.
    """

    names: ClassVar[tuple[str, ...]] = ("correlation",)
    said: ClassVar[tuple[str, ...]] = ("pearson", "spearman")

    n: int = 0
    means_2: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))
    products_22: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(2, 2, dtype=torch.float64))
    pairs: list[Tensor] = dataclasses.field(default_factory=list)

    def add(self, output: Output, batch: Batch) -> None:
        """Join the moments of a batch to those so far (Chan et al. 1979), which stays exact far from zero."""
        assert batch.labels is not None
        # squares of labels far from zero need more digits than float32 has
        both_B2 = torch.stack([output.logits.double().cpu(), batch.labels.double().cpu()], -1)
        self.pairs.append(both_B2)
        self._join(both_B2)

    def _join(self, both_B2: Tensor) -> None:
        m, mean_2 = len(both_B2), both_B2.mean(0)
        inside_B2, step_2 = both_B2 - mean_2, mean_2 - self.means_2
        self.products_22 += inside_B2.mT @ inside_B2 + torch.outer(step_2, step_2) * self.n * m / (self.n + m)
        self.means_2 += step_2 * m / (self.n + m)
        self.n += m

    @property
    def pearson(self) -> float:
        """The correlation of guesses and labels; 0 where either does not vary."""
        (gg, gl), (_, ll) = self.products_22.tolist()
        return float(gl / (gg * ll) ** 0.5) if gg > 0 and ll > 0 else 0.0

    @property
    def spearman(self) -> float:
        """The correlation of their ranks (Spearman 1904)."""
        if not self.pairs:
            return 0.0
        of_ranks = Correlation()
        of_ranks._join(torch.stack([ranks(x) for x in torch.cat(self.pairs).unbind(-1)], -1))
        return of_ranks.pearson

    def sentences(self) -> list[str]:
        return [f"correlation    {self.pearson:.4f}", f"of ranks       {self.spearman:.4f}", *super().sentences()]

    def points(self) -> list[list[float]]:
        """Return guesses and labels, evenly chosen where there are many."""
        both = torch.cat(self.pairs) if self.pairs else torch.zeros(0, 2)
        step = max(1, -(-len(both) // POINTS))
        return [[float(f"{x:.4g}") for x in row] for row in both[::step].tolist()]


def ranks(values_N: Tensor) -> Tensor:
    """Return the rank of each value from 1 on; equal values share the mean of theirs."""
    _, which_N, counts_U = torch.unique(values_N, return_inverse=True, return_counts=True)
    # half ranks of ties, exact up to 2^52 values
    last_U = counts_U.cumsum(0).double()
    return (last_U - (counts_U - 1) / 2)[which_N]


COUNTED = ("class", "labels", "answers", "right", "precision", "recall", "F1")
"""Columns of the table of classes."""


def counted(name: str, labels: int, answers: int, right: int) -> tuple[str, ...]:
    """Return a row of the table of classes."""

    def share(n: float, of: int) -> str:
        return f"{n / of:.4f}" if of else ""

    return (
        name,
        f"{labels:,}",
        f"{answers:,}",
        f"{right:,}",
        share(right, answers),
        share(right, labels),
        share(2 * right, labels + answers),
    )
