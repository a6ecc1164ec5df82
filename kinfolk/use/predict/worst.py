"""The examples that a model is most wrong about, kept while it is scored."""

import dataclasses
import heapq
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.models.model import Output
from kinfolk.objectives.objective import Objective
from kinfolk.objectives.supervised import ClassifyMany, Regress, SpanAnswer, Tag
from kinfolk.train.answers import Answers
from kinfolk.train.tallies import Tally


@dataclasses.dataclass(frozen=True)
class Example:
    """An example in words: its text, what is right, what the model says, and what that costs.

    notes: what stands out, as the words whose tags are wrong.
    """

    text: str
    label: str
    answer: str
    loss: float
    notes: str = ""


class Keeping:
    """A tally that also keeps the `most` examples with the highest losses; of tags the mean over words."""

    def __init__(self, inner: Tally, objective: Objective, most: int) -> None:
        self.inner, self.objective, self.most = inner, objective, most
        self.split: Any = None
        self._heap: list[tuple[float, int, Example]] = []
        self._of_questions: dict[int, float] = {}
        self._count = 0

    def add(self, output: Output, batch: Batch) -> None:
        """Tally a batch, and keep what is worst in it."""
        self.inner.add(output, batch)
        logits = output.logits.detach().double().cpu()
        batch = batch.map(lambda x: x.cpu())
        losses = losses_of(self.objective, logits, batch).tolist()
        for row, (i, loss) in enumerate(zip(batch.index.tolist(), losses, strict=True)):
            if isinstance(self.objective, SpanAnswer):
                question = self.split.question_of(i)
                self._of_questions[question] = max(loss, self._of_questions.get(question, 0.0))
            elif len(self._heap) < self.most or loss > self._heap[0][0]:
                self._keep(loss, self._example(i, loss, logits[row], batch.rows(slice(row, row + 1))))

    def worst(self) -> list[Example]:
        """Return what was kept, the worst first."""
        if isinstance(self.inner, Answers):
            return self._questions(self.inner)
        return [example for _, _, example in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1]))]

    def _keep(self, loss: float, example: Example) -> None:
        # the number keeps examples themselves from being compared
        self._count += 1
        entry = (loss, -self._count, example)
        if len(self._heap) < self.most:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heapreplace(self._heap, entry)

    def _example(self, i: int, loss: float, logits: Tensor, batch: Batch) -> Example:
        split, classes = self.split, self.split.classes
        if isinstance(self.objective, Tag):
            return _tagged(split, i, loss, logits, batch)
        assert batch.labels is not None
        label = batch.labels[0]
        if isinstance(self.objective, Regress):
            return Example(_text(split, i), f"{float(label):g}", f"{float(logits):g}", loss)
        if isinstance(self.objective, ClassifyMany):
            holds, found = (
                ", ".join(name for name, on in zip(classes, x.tolist(), strict=True) if on) or "(none)"
                for x in (label > 0.5, logits > 0)
            )
            return Example(_text(split, i), holds, found, loss)
        shares = logits.softmax(-1)
        said = f"{classes[int(shares.argmax())]} ({float(shares.max()):.2f})"
        return Example(_text(split, i), classes[int(label)], said, loss)

    def _questions(self, found: Answers) -> list[Example]:
        """Return the questions that were answered worst: by their overlap, then by their loss."""
        scored = [(found.scores(i)[1], -self._of_questions.get(i, 0.0), i) for i in found.read()]
        examples = []
        for overlap, loss, i in sorted(scored)[: self.most]:
            question, answer = found.split.questions[i], found.answer(i)
            right = " | ".join(dict.fromkeys(text for _, text in question.answers)) or "(no answer)"
            said = f"{answer.text or '(no answer)'} ({answer.score:.2f})"
            examples.append(
                Example(f"{question.question}\n{question.context}", right, said, -loss, f"F1 {overlap:.2f}")
            )
        return examples


def losses_of(objective: Objective, logits: Tensor, batch: Batch) -> Tensor:
    """Return the loss of each example: [B]."""
    if isinstance(objective, Tag):
        assert batch.targets is not None
        nats = F.cross_entropy(logits.mT, batch.targets, ignore_index=IGNORE, reduction="none")
        return nats.sum(1) / (batch.targets != IGNORE).sum(1).clamp(min=1)
    assert batch.labels is not None
    labels = batch.labels
    if isinstance(objective, SpanAnswer):
        return F.cross_entropy(logits, labels, reduction="none").sum(1) / 2
    if isinstance(objective, Regress):
        return (logits - labels.double()).square()
    if isinstance(objective, ClassifyMany):
        return F.binary_cross_entropy_with_logits(logits, labels.double(), reduction="none").sum(1)
    return F.cross_entropy(logits, labels, reduction="none")


def _text(split: Any, i: int) -> str:
    *parts, _ = split.examples(np.array([i]))[0]
    if hasattr(split, "channels"):
        return f"picture {i + 1} of the {split.name} part"
    return "\n".join(split.tokenizer.decode(ids) for ids in parts)


def _tagged(split: Any, i: int, loss: float, logits: Tensor, batch: Batch) -> Example:
    assert batch.targets is not None
    asked = batch.targets[0] != IGNORE
    said = [split.classes[k] for k in logits.argmax(-1)[asked].tolist()]
    right = [split.classes[k] for k in batch.targets[0][asked].tolist()]
    sentences = getattr(split, "sentences", None)
    if sentences is None:
        return Example(_text(split, i), " ".join(right), " ".join(said), loss)
    words, right = sentences[i].words, list(sentences[i].tags)
    wrong = [f"{w}: {a} not {b}" for w, a, b in zip(words, said, right, strict=False) if a != b]
    lost = f"; {len(right) - len(said)} words cut off" if len(said) < len(right) else ""
    return Example(" ".join(words), " ".join(right), " ".join(said), loss, "; ".join(wrong[:12]) + lost)


def points(pairs: list[Tensor], most: int = 600) -> list[list[float]]:
    """Return guesses and labels to draw, evenly chosen where there are many."""
    both = torch.cat(pairs) if pairs else torch.zeros(0, 2)
    step = max(1, -(-len(both) // most))
    return [[float(f"{x:.4g}") for x in row] for row in both[::step].tolist()]
