"""Supervised objectives: cross entropy of labels of sequences, tokens and answer spans."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import FiniteFloat, NonNegativeFloat, PositiveInt, Rate
from kinfolk.core.device import wide
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output
from kinfolk.objectives.objective import Loss, Objective, Vocabulary, real, side_loss, summed, to_front, token_losses
from kinfolk.ops.answer_span import best_span


class Labels(Objective):
    """Axis: objectives that score labels: classes, numbers, tags, spans.

    `opening` "cls" puts a token before everything, whose state summarises all of it (Devlin et al. 2019). Of two
    sequences one row is made, with separators between them, and `segments` say which token is whose. `reads` says
    where it goes: to the "tokens" of an encoder or a decoder, or to the "source" of an encoder-decoder, whose decoder
    then reads an opening token alone, or to "both", so that every token has a state that knows all (Lewis et al. 2020).
    """

    opening: Literal["none", "cls"] = "none"
    reads: Literal["tokens", "source", "both"] = "tokens"

    @property
    def needs_encoder(self) -> bool:
        return self.reads != "tokens"

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if batch.labels is None:
            raise SpecError(f"objective: {self.kind!r} scores labels, and this data has none")
        batch = batch if batch.source is None else side_by_side(batch, vocabulary)
        if self.opening == "cls":
            batch = opened(batch, vocabulary.cls)
        return self.given(batch, vocabulary)

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Report nothing of its own: measures that name its kind compute their own sums."""
        return {}

    def example_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each example [B], to find the worst of them."""
        raise NotImplementedError(f"objective {self.kind!r}: has no loss of single examples (`example_losses`)")

    def given(self, batch: Batch, vocabulary: Vocabulary) -> Batch:
        """Give the row to the side of the model that reads it."""
        if self.reads == "tokens":
            # one sequence is one segment; a model whose layers ask for segments is to learn what that means
            return batch if batch.segments is not None else batch.replace(segments=torch.zeros_like(batch.tokens))
        if self.reads == "both":
            return batch.replace(source=batch.tokens, source_keep=batch.keep)
        start = torch.full_like(batch.tokens[:, :1], vocabulary.start)
        return Batch(index=batch.index, tokens=start, source=batch.tokens, source_keep=batch.keep, labels=batch.labels)


class Classify(Labels, kind="classify"):
    """The class of a sequence, or of a pair of them.

    `weights`, one for each class, say how much an example of it counts in the loss, which is then a weighted mean;
    none: all count the same. Measures know no weights.
    """

    label_smoothing: Rate = 0.0
    weights: tuple[NonNegativeFloat, ...] = ()

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.labels is not None
        logits, labels = output.logits, batch.labels
        weights = _weights(self.weights, logits)
        total = F.cross_entropy(logits, labels, weights, reduction="sum", label_smoothing=self.label_smoothing)
        return Loss(total, _number(labels) if weights is None else weights[labels].sum(), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        assert batch.labels is not None
        n, logits = _number(batch.labels), wide(output.logits)
        nats = F.cross_entropy(logits, batch.labels, reduction="sum")
        return {"class": (nats, n), "accuracy": ((logits.argmax(-1) == batch.labels).sum(), n)}

    def example_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        return F.cross_entropy(logits, batch.labels, reduction="none")


class ClassifyMany(Labels, kind="classify-many"):
    """Of each class whether it holds, apart from the others; labels are rows of 0 and 1.

    `weights`, one for each class, say how many times as much as its absence its presence counts.
    """

    weights: tuple[NonNegativeFloat, ...] = ()

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.labels is not None
        logits, labels = output.logits, batch.labels.to(output.logits)
        weights = _weights(self.weights, logits)
        total = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights, reduction="sum")
        return Loss(total, torch.full((), batch.labels.numel(), device=total.device), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Right decisions about single classes, and examples where all of them are right."""
        assert batch.labels is not None
        logits, labels = wide(output.logits), wide(batch.labels)
        nats = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        right = (logits > 0) == (labels > 0.5)
        each = torch.full((), labels.numel(), device=labels.device)
        return {
            "class": (nats, each),
            "accuracy": (right.sum(), each),
            "exact-match": (right.all(1).sum(), _number(labels)),
        }

    def example_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        # of logits: the probability of a sure answer rounds to 1, and its logarithm would be infinite
        return F.binary_cross_entropy_with_logits(logits, batch.labels.double(), reduction="none").sum(1)


class Regress(Labels, kind="regress"):
    """A number, with squared errors."""

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.labels is not None
        total = (output.logits - batch.labels.to(output.logits)).square().sum()
        return Loss(total, _number(batch.labels), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        assert batch.labels is not None
        errors, n = wide(output.logits) - wide(batch.labels), _number(batch.labels)
        return {"squared-error": (errors.square().sum(), n), "absolute-error": (errors.abs().sum(), n)}

    def example_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        # labels may be large numbers, whose small differences float32 would round
        return (logits - batch.labels.double()).square()


class Tag(Labels, kind="tag"):
    """The tag of every token that has one; data gives them as `targets`, IGNORE elsewhere.

    A word of several pieces has its tag at the first (Devlin et al. 2019, section 5.3).
    """

    def __post_init__(self) -> None:
        if self.reads == "source":
            raise SpecError("tag: every token needs a state of its own, which a source has not; use reads = 'both'")

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if batch.targets is None:
            raise SpecError(f"objective: {self.kind!r} scores tags of tokens, and this data has none")
        return self.given(opened(batch, vocabulary.cls) if self.opening == "cls" else batch, vocabulary)

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        losses, scored = token_losses(output, batch)
        right = (output.logits.argmax(-1) == batch.targets) & scored
        return {"tag": summed(losses, scored), "accuracy": (right.sum(), scored.sum())}

    def example_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean over the words of each sentence."""
        assert batch.targets is not None
        nats = F.cross_entropy(logits.mT, batch.targets, ignore_index=IGNORE, reduction="none")
        return nats.sum(1) / (batch.targets != IGNORE).sum(1).clamp(min=1)


class Reconstruct(Tag, kind="reconstruct"):
    """Every token of a sequence, which the head tells from its last state alone (Poli et al. 2024, compression)."""

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.targets is not None
        total = F.cross_entropy(output.logits.mT, batch.targets, ignore_index=IGNORE, reduction="sum")
        return Loss(total, (batch.targets != IGNORE).sum(), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        assert batch.targets is not None
        scored, logits = batch.targets != IGNORE, wide(output.logits)
        nats = F.cross_entropy(logits.mT, batch.targets, ignore_index=IGNORE, reduction="sum")
        right = (logits.argmax(-1) == batch.targets) & scored
        return {"tag": (nats, scored.sum()), "accuracy": (right.sum(), scored.sum())}


class SpanAnswer(Labels, kind="span-answer"):
    """The first and the last token of an answer; none is the opening token (Devlin et al. 2019, sections 4.2 and 4.3).

    Labels count from the first token of the sequence that holds answers: of two, the second, a question being the
    first. A label below 0, or an answer that was cut off, is no answer. Evaluation takes the best span of at most
    `longest` tokens that beats no answer by more than `threshold`; it is never in the question.
    """

    opening: Literal["none", "cls"] = "cls"
    longest: PositiveInt = 30
    threshold: FiniteFloat = 0.0

    def __post_init__(self) -> None:
        if self.opening != "cls" or self.reads == "source":
            raise SpecError("span-answer: position 0 of the input means no answer; use opening = 'cls'")

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if batch.labels is None:
            raise SpecError(f"objective: {self.kind!r} scores labels, and this data has none")
        holds, keep = (batch.tokens, batch.keep) if batch.source is None else (batch.source, batch.source_keep)
        length_B = torch.full_like(batch.index, holds.shape[1]) if keep is None else keep.sum(1)
        before_B = torch.zeros_like(length_B)
        if batch.source is not None:
            before_B = torch.full_like(length_B, batch.tokens.shape[1]) if batch.keep is None else batch.keep.sum(1)
            before_B = before_B + vocabulary.between - 1
        inside_B = ((batch.labels >= 0) & (batch.labels < length_B[:, None])).all(1)
        spans_B2 = torch.where(inside_B[:, None], batch.labels + before_B[:, None] + 1, 0)
        return super().prepare(batch, rng, vocabulary).replace(labels=spans_B2)

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.labels is not None
        total = F.cross_entropy(output.logits, batch.labels, reduction="sum") / 2
        return Loss(total, _number(batch.labels), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Answers that are right to the token, and the overlap with what is right (F1 of token positions)."""
        assert batch.labels is not None
        n, scores = _number(batch.labels), wide(output.logits)
        nats = F.cross_entropy(scores, batch.labels, reduction="sum") / 2
        inside = _in_text(scores, batch)
        found, _ = best_span(inside[..., 0], inside[..., 1], self.longest, self.threshold)
        shared = torch.minimum(found, batch.labels)[:, 1] - torch.maximum(found, batch.labels)[:, 0] + 1
        lengths = (found[:, 1] - found[:, 0] + 1) + (batch.labels[:, 1] - batch.labels[:, 0] + 1)
        overlap = 2 * shared.clamp(min=0) / lengths.clamp(min=1)
        return {
            "span": (nats, n),
            "exact-match": ((found == batch.labels).all(1).sum(), n),
            "overlap": (wide(overlap).sum(), n),
        }

    def example_losses(self, logits: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        return F.cross_entropy(logits, batch.labels, reduction="none").sum(1) / 2


def _weights(weights: tuple[float, ...], logits_BC: Tensor) -> Tensor | None:
    """Return the weights of classes as a tensor, if there are any, one for each."""
    if not weights:
        return None
    if len(weights) != logits_BC.shape[1]:
        raise SpecError(f"weights: {len(weights)} of them for {logits_BC.shape[1]} classes")
    return logits_BC.new_tensor(weights)


def _in_text(scores_BL2: Tensor, batch: Batch) -> Tensor:
    """Leave out what can be no answer: where two sequences were read, the first, which is the question."""
    if batch.segments is None or not bool(batch.segments.any()):
        return scores_BL2
    question_BL = batch.segments == 0
    # the opening token means no answer
    question_BL[:, 0] = False
    return scores_BL2.masked_fill(question_BL[..., None], -torch.inf)


def _number(labels: Tensor) -> Tensor:
    """Return how many examples there are, where the labels are."""
    return torch.full((), len(labels), device=labels.device)


def side_by_side(batch: Batch, vocabulary: Vocabulary) -> Batch:
    """Write both sequences of a pair in one row. The end of the first becomes a separator; more may follow."""
    assert batch.source is not None
    first, second = real(batch.tokens, batch.keep), real(batch.source, batch.source_keep)
    tokens = batch.tokens.scatter(1, first.sum(1, keepdim=True) - 1, vocabulary.sep)
    more = tokens.new_full((len(tokens), vocabulary.between - 1), vocabulary.sep)
    tokens, keep = torch.cat([tokens, more, batch.source], 1), torch.cat([first, torch.ones_like(more) > 0, second], 1)
    segments = F.pad(torch.ones_like(batch.source), (tokens.shape[1] - batch.source.shape[1], 0))
    keep, tokens, segments = to_front(keep, tokens, segments)
    tokens, segments = tokens.masked_fill(~keep, vocabulary.pad), segments.masked_fill(~keep, 0)
    return batch.replace(tokens=tokens, keep=keep, segments=segments, source=None, source_keep=None)


def opened(batch: Batch, token: int) -> Batch:
    """Put a token before every row."""

    def before(ids: Tensor | None, value: int) -> Tensor | None:
        return None if ids is None else F.pad(ids, (1, 0), value=value)

    return batch.replace(
        tokens=before(batch.tokens, token),
        keep=before(batch.keep, 1),
        segments=before(batch.segments, 0),
        targets=before(batch.targets, IGNORE),
    )
