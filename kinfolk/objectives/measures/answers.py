"""Exact match and F1 of extractive answers, over all windows of a text (SQuAD)."""

import collections
import dataclasses
import math
import re
import string
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.batch import Batch
from kinfolk.data.splits.answering import AnswerSplit
from kinfolk.models.model import Output
from kinfolk.objectives.measures.tallies import Table, Tally
from kinfolk.ops.answer_span import best_span

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_MARKS = str.maketrans("", "", string.punctuation)


@dataclasses.dataclass(frozen=True)
class PredictedAnswer:
    """What a model answers: a text and its position, or "" for no answer.

    score: the share of this answer, as exponentials of scores, among all spans of its window, and no answer where that
        may be right.
    margin: by how much the best span beats having no answer.
    """

    text: str
    start: int
    stop: int
    score: float
    margin: float


class WindowAnswers:
    """The best span of each question over all windows of its context.

    Spans of all windows compete by the sum of the scores of their ends (Devlin et al. 2019, section 4.3). There is no
    answer where even the window that is least sure of that scores it above the best span less `threshold`.
    """

    def __init__(self, split: AnswerSplit, longest: int) -> None:
        n = len(split.questions)
        self.split, self.longest = split, longest
        self.best, self.none = np.full(n, -np.inf), np.full(n, np.inf)
        self.places = np.zeros((n, 2), np.int64)
        # of the window of the best span: all spans, and no answer; of the one that is least sure of none: all spans
        self._spans, self._beside, self._against = (np.zeros(n) for _ in range(3))

    def add(self, scores_BL2: Tensor, windows: Sequence[int]) -> None:
        """Take what a model says of some windows: the scores of positions as first and last of an answer."""
        # scores of thousands of spans are added up and compared across windows
        scores = scores_BL2.double().cpu()
        inside_BL = torch.zeros(scores.shape[:2], dtype=torch.bool)
        for row, window in enumerate(windows):
            begin, end = self.split.text_at(window)
            inside_BL[row, begin:end] = True
        none_B = scores[:, 0].sum(-1)
        scores = scores.masked_fill(~inside_BL[..., None], -torch.inf)
        # position 0 means no answer, which is taken up when all windows are known
        scores[:, 0] = 0.0
        spans_B2, best_B = best_span(scores[..., 0], scores[..., 1], self.longest, -math.inf)
        mass_B = _mass(scores[:, 1:, 0], scores[:, 1:, 1], self.longest)
        for row, window in enumerate(windows):
            i = self.split.question_of(window)
            if none_B[row] < self.none[i]:
                self.none[i], self._against[i] = float(none_B[row]), float(mass_B[row])
            if best_B[row] > self.best[i]:
                self.best[i] = float(best_B[row])
                self._spans[i], self._beside[i] = float(mass_B[row]), float(none_B[row])
                self.places[i] = self.split.characters(window, *spans_B2[row].tolist())

    def answer(self, i: int, threshold: float, *, always: bool) -> PredictedAnswer:
        """Return the answer to a question; with `always`, some span whatever no answer scores."""
        margin = float(self.best[i] - self.none[i])
        start, stop = (int(x) for x in self.places[i])
        if not always and not margin > threshold:
            return PredictedAnswer(
                "", 0, 0, float(np.exp(self.none[i] - np.logaddexp(self._against[i], self.none[i]))), margin
            )
        text = self.split.questions[i].context[start:stop]
        total = self._spans[i] if always else np.logaddexp(self._spans[i], self._beside[i])
        return PredictedAnswer(text, start, stop, float(np.exp(self.best[i] - total)), margin)


def _mass(begin_BL: Tensor, end_BL: Tensor, longest: int) -> Tensor:
    """Return the logarithm of the sum over all spans of the exponentials of their scores."""
    n = min(longest, begin_BL.shape[1])
    # a span beyond the end has the weight exp(-inf) = 0
    ends_BLn = F.pad(end_BL, (0, n - 1), value=-torch.inf).unfold(1, n, 1)
    return (begin_BL + ends_BLn.logsumexp(-1)).logsumexp(-1)


def plain_words(text: str) -> list[str]:
    """Return the words of an answer as SQuAD compares them: small letters, no punctuation, no articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_MARKS)).split()


def exact(answer: str, right: Sequence[str]) -> float:
    """Return 1 if an answer is one of the right ones; the right one to a question without answers is ""."""
    return float(any(plain_words(answer) == plain_words(text) for text in right or ("",)))


def overlap(answer: str, right: Sequence[str]) -> float:
    """Return F1 of the words of an answer and of the right one that it is nearest to."""
    return max(_overlap(plain_words(answer), plain_words(text)) for text in right or ("",))


def _overlap(answer: list[str], right: list[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    shared = (collections.Counter(answer) & collections.Counter(right)).total()
    return 2 * shared / (len(answer) + len(right))


@dataclasses.dataclass
class Answers(Tally):
    """Exact matches and overlap of answers, joined over windows, over the questions that were read."""

    names: ClassVar[tuple[str, ...]] = ("answers",)
    said: ClassVar[tuple[str, ...]] = ("answer-f1", "answer-exact")

    split: AnswerSplit
    longest: int = 30
    threshold: float = 0.0

    def __post_init__(self) -> None:
        self.windows = WindowAnswers(self.split, self.longest)

    def add(self, output: Output, batch: Batch) -> None:
        """Take the answers of a batch of windows."""
        self.windows.add(output.logits, batch.index.tolist())

    def read(self) -> list[int]:
        """Return the questions that were read."""
        return np.flatnonzero(np.isfinite(self.windows.none)).tolist()

    def answer(self, i: int) -> PredictedAnswer:
        """Return the answer to a question."""
        return self.windows.answer(i, self.threshold, always=self.split.always)

    def scores(self, i: int) -> tuple[float, float]:
        """Return exact match and overlap of a question."""
        text, right = self.answer(i).text, [text for _, text in self.split.questions[i].answers]
        return exact(text, right), overlap(text, right)

    def means(self) -> tuple[float, float]:
        """Return exact match and overlap over all questions that were read."""
        both = np.array([self.scores(i) for i in self.read()]).reshape(-1, 2)
        means = both.mean(0) if len(both) else np.zeros(2)
        return float(means[0]), float(means[1])

    @property
    def answer_exact(self) -> float:
        """The first of both."""
        return self.means()[0]

    @property
    def answer_f1(self) -> float:
        """The second of both."""
        return self.means()[1]

    def plain(self) -> dict[str, Any]:
        """Return everything; where questions may have no answer, also which threshold would be best here."""
        asked = self.read()
        found: dict[str, Any] = super().plain() | {"questions": len(asked), "questions_cut": self.split.questions_cut}
        if not self.split.always:
            has = [i for i in asked if self.split.questions[i].answers]
            without = [i for i in asked if not self.split.questions[i].answers]
            for name, some in (("with_answer", has), ("without_answer", without)):
                means = np.array([self.scores(i) for i in some]).reshape(-1, 2).sum(0) / max(1, len(some))
                found[name] = {"questions": len(some), "exact": float(means[0]), "f1": float(means[1])}
            found["no_answer"] = {"threshold": self.threshold} | self._best_threshold(asked)
        return found

    def _best_threshold(self, asked: list[int]) -> dict[str, float]:
        """Return the threshold with the highest overlap, and that: a figure to choose by, not to boast of."""
        margins, gains = [], []
        total = 0.0
        for i in asked:
            right = [text for _, text in self.split.questions[i].answers]
            spoken = overlap(self.windows.answer(i, 0.0, always=True).text, right)
            total += overlap("", right)
            margins.append(float(self.windows.best[i] - self.windows.none[i]))
            gains.append(spoken - overlap("", right))
        order = np.argsort(margins)[::-1]
        sums = np.concatenate([[0.0], np.cumsum(np.array(gains)[order])])
        best = int(sums.argmax())
        ordered = np.array(margins)[order]
        # between the last that speaks and the first that is silent
        above = ordered[best - 1] if best else ordered[0] + 2.0
        below = ordered[best] if best < len(ordered) else above - 2.0
        return {"best_threshold": float((above + below) / 2), "best_f1": (total + float(sums[best])) / len(asked)}

    def sentences(self) -> list[str]:
        found = self.plain()
        lines = [f"answer F1      {found['answer_f1']:.4f}", f"exact match    {found['answer_exact']:.4f}"]
        lines.append(f"questions      {found['questions']:,}")
        for name in ("with_answer", "without_answer"):
            if name in found:
                row = found[name]
                lines.append(
                    f"  {name.replace('_', ' '):14} F1 {row['f1']:.4f}, exact {row['exact']:.4f}, {row['questions']:,}"
                )
        if "no_answer" in found:
            row = found["no_answer"]
            best = f"{row['best_threshold']:.2f} would give F1 {row['best_f1']:.4f} here"
            lines.append(f"no answer      below a margin of {row['threshold']:g}; {best}")
        if found["questions_cut"]:
            lines.append(f"questions cut  {found['questions_cut']:,} lose their end")
        return lines + super().sentences()

    def table(self) -> Table:
        """Return questions with and without an answer, where there are both."""
        found = self.plain()
        if "with_answer" not in found:
            return (), ()
        rows = [(name.replace("_", " "), found[name]) for name in ("with_answer", "without_answer")]
        return ("questions", "number", "exact", "F1"), tuple(
            (name, f"{row['questions']:,}", f"{row['exact']:.4f}", f"{row['f1']:.4f}") for name, row in rows
        )
