"""How well labels are found, beyond one number: which classes are taken for which, and what follows from that."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output, State
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import Classify, ClassifyMany, Regress, Tag

SHOWN = 12
"""The largest number of classes whose matrix is printed."""


class Tally(Protocol):
    """Counts over batches, in memory that does not grow with them."""

    def add(self, output: Output, batch: Batch) -> None:
        """Take what a model said of a batch."""

    def plain(self) -> dict[str, Any]:
        """Return what was found, as plain data."""

    def sentences(self) -> list[str]:
        """Say it."""


@dataclasses.dataclass
class Confusion:
    """How often each class (row) was taken for each (column).

    macro_f1 is the mean over the classes that occur among labels or answers, one that is never found counting 0; mcc is
    Matthews' correlation for many classes (Gorodkin 2004), 0 where all labels or all answers are one class.
    """

    classes: Sequence[str]
    counts_CC: Tensor

    def add(self, output: Output, batch: Batch) -> None:
        """Count the answers of a batch; where tokens are tagged, those that have a tag."""
        answers, labels = output.logits.argmax(-1), batch.labels if batch.targets is None else batch.targets
        assert labels is not None
        real, n = labels != IGNORE, len(self.counts_CC)
        pairs = (labels[real] * n + answers[real]).cpu()
        self.counts_CC += torch.bincount(pairs, minlength=n * n).view(n, n)

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return int(self.counts_CC.trace()) / max(1, int(self.counts_CC.sum()))

    @property
    def f1(self) -> list[float | None]:
        """The harmonic mean of precision and recall of each class; None of one that does not occur."""
        both = (self.counts_CC.sum(0) + self.counts_CC.sum(1)).tolist()
        return [2 * hit / n if n else None for hit, n in zip(self.counts_CC.diagonal().tolist(), both, strict=True)]

    @property
    def macro_f1(self) -> float:
        """The mean of `f1`."""
        return _mean([x for x in self.f1 if x is not None])

    @property
    def mcc(self) -> float:
        """Matthews' correlation."""
        counts = self.counts_CC.double()
        n, hits, labels, answers = counts.sum(), counts.trace(), counts.sum(1), counts.sum(0)
        spread = (n * n - answers.square().sum()) * (n * n - labels.square().sum())
        return float((hits * n - (labels * answers).sum()) / spread.sqrt()) if spread > 0 else 0.0

    def plain(self) -> dict[str, Any]:
        """Return everything."""
        found, right = self.counts_CC.sum(0).tolist(), self.counts_CC.diagonal().tolist()
        rows = zip(self.classes, self.counts_CC.sum(1).tolist(), found, right, self.f1, strict=True)
        return {
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "mcc": self.mcc,
            "classes": [
                {"name": name, "labels": labels, "answers": answers, "right": hits, "f1": f1}
                for name, labels, answers, hits, f1 in rows
            ],
            "confusion": self.counts_CC.tolist(),
        }

    def sentences(self) -> list[str]:
        """Say it, the matrix where it fits on a screen."""
        lines = [f"macro-F1       {self.macro_f1:.4f}", f"MCC            {self.mcc:.4f}"]
        if len(self.classes) > SHOWN:
            worst = sorted((x, name) for x, name in zip(self.f1, self.classes, strict=True) if x is not None)[:SHOWN]
            return [*lines, "lowest F1      " + ", ".join(f"{name} {x:.2f}" for x, name in worst)]
        width = max(6, *(len(name) for name in self.classes))
        lines.append("label \\ answer".ljust(width + 2) + "".join(name.rjust(width + 2) for name in self.classes))
        for name, row in zip(self.classes, self.counts_CC.tolist(), strict=True):
            lines.append(name.ljust(max(width + 2, 14)) + "".join(f"{count:,}".rjust(width + 2) for count in row))
        return lines


@dataclasses.dataclass
class Holding:
    """Of each class how often it was rightly found (0), wrongly found (1) and missed (2)."""

    classes: Sequence[str]
    counts_C3: Tensor

    def add(self, output: Output, batch: Batch) -> None:
        """Count the answers of a batch."""
        assert batch.labels is not None
        found, holds = output.logits.cpu() > 0, batch.labels.cpu() > 0.5
        self.counts_C3 += torch.stack([found & holds, found & ~holds, ~found & holds], -1).sum(0)

    @property
    def f1(self) -> list[float | None]:
        """Of each class; None of one that neither holds nor is found."""
        return [
            2 * hit / n if (n := 2 * hit + wrong + missed) else None for hit, wrong, missed in self.counts_C3.tolist()
        ]

    @property
    def micro_f1(self) -> float:
        """Of all decisions together."""
        hit, wrong, missed = self.counts_C3.sum(0).tolist()
        return 2 * hit / max(1, 2 * hit + wrong + missed)

    @property
    def macro_f1(self) -> float:
        """The mean of `f1`."""
        return _mean([x for x in self.f1 if x is not None])

    def plain(self) -> dict[str, Any]:
        """Return everything."""
        rows = zip(self.classes, self.counts_C3.tolist(), self.f1, strict=True)
        each = [{"name": name, "right": a, "wrong": b, "missed": c, "f1": f1} for name, (a, b, c), f1 in rows]
        return {"micro_f1": self.micro_f1, "macro_f1": self.macro_f1, "classes": each}

    def sentences(self) -> list[str]:
        """Say the means."""
        return [f"micro-F1       {self.micro_f1:.4f}", f"macro-F1       {self.macro_f1:.4f}"]


@dataclasses.dataclass
class Correlation:
    """Moments of guesses and labels: their number, means, and sums of products of differences from the means."""

    n: int = 0
    means_2: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))
    products_22: Tensor = dataclasses.field(default_factory=lambda: torch.zeros(2, 2, dtype=torch.float64))

    def add(self, output: Output, batch: Batch) -> None:
        """Join the moments of a batch to those so far (Chan et al. 1979), which stays exact far from zero."""
        assert batch.labels is not None
        both_B2 = torch.stack([output.logits.double().cpu(), batch.labels.double().cpu()], -1)
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

    def plain(self) -> dict[str, Any]:
        """Return it."""
        return {"pearson": self.pearson}

    def sentences(self) -> list[str]:
        """Say it."""
        return [f"correlation    {self.pearson:.4f}"]


class Watched:
    """A learner whose answers are tallied while it is scored, so that it runs once."""

    def __init__(self, learner: Learner, tally: Tally) -> None:
        self.learner, self.tally, self.training = learner, tally, learner.training

    def train(self, mode: bool = True) -> Any:
        """Switch dropout on or off."""
        self.training = mode
        return self.learner.train(mode)

    def prepare(self, batch: Batch, rng: Rng) -> Batch:
        """Make inputs of a batch as read."""
        return self.learner.prepare(batch, rng)

    def new_memory(self) -> State | None:
        """Return an empty memory, if the model has one."""
        return self.learner.new_memory()

    def measure(self, batch: Batch, memory: Any = None) -> dict[str, tuple[Tensor, Tensor]]:
        """Score a batch, and tally it."""
        output, batch = self.learner.run(batch, memory)
        self.tally.add(output, batch)
        return self.learner.objective.measure(output, batch)


def tally_of(objective: Objective, classes: Sequence[str]) -> Tally | None:
    """Return an empty tally for what an objective asks; None where there is nothing to say beyond its measures."""
    n = len(classes)
    if isinstance(objective, Classify | Tag) and n:
        return Confusion(classes, torch.zeros(n, n, dtype=torch.long))
    if isinstance(objective, ClassifyMany):
        return Holding(classes, torch.zeros(n, 3, dtype=torch.long))
    return Correlation() if isinstance(objective, Regress) else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
