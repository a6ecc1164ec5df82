"""Learn from labels that somebody gave: one for a whole sequence."""

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output
from kinfolk.objectives.objective import Loss, Objective, Vocabulary, side_loss

OPENINGS = ("none", "cls")
READERS = ("tokens", "source")


class Labels(Objective):
    """What objectives share that score labels: how a model gets to read what is labelled.

    `opening` "cls" puts a token before everything, whose state stands for all of it (Devlin et al. 2019). Of two
    sequences one row is made, with a separator between them, and `segments` say which token is whose. `reads` says
    where it goes: to the "tokens" of an encoder or a decoder, or to the "source" of an encoder-decoder, whose decoder
    then reads an opening token alone.
    """

    opening: str = "none"
    reads: str = "tokens"

    def __post_init__(self) -> None:
        if self.opening not in OPENINGS:
            raise SpecError(f"opening: unknown {self.opening!r}{suggest(self.opening, OPENINGS)}")
        if self.reads not in READERS:
            raise SpecError(f"reads: unknown {self.reads!r}{suggest(self.reads, READERS)}")

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if batch.labels is None:
            raise SpecError(f"objective: {self.kind!r} scores labels, and this data has none")
        batch = batch if batch.source is None else side_by_side(batch, vocabulary)
        if self.opening == "cls":
            batch = opened(batch, vocabulary.cls)
        if self.reads == "tokens":
            return batch
        start = torch.full_like(batch.tokens[:, :1], vocabulary.bos)
        return Batch(index=batch.index, tokens=start, source=batch.tokens, source_keep=batch.keep, labels=batch.labels)


class Classify(Labels, kind="classify"):
    """The class of a sequence, or of a pair of them."""

    label_smoothing: float = 0.0

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.labels is not None
        total = F.cross_entropy(output.logits, batch.labels, reduction="sum", label_smoothing=self.label_smoothing)
        return Loss(total, batch.labels.new_tensor(len(batch.labels)), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        assert batch.labels is not None
        n = batch.labels.new_tensor(len(batch.labels))
        nats = F.cross_entropy(output.logits.double(), batch.labels, reduction="sum")
        return {"class": (nats, n), "accuracy": ((output.logits.argmax(-1) == batch.labels).sum(), n)}


def side_by_side(batch: Batch, vocabulary: Vocabulary) -> Batch:
    """Write both sequences of a pair in one row. The end of the first becomes a separator."""
    assert batch.source is not None
    first, second = (
        torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
        for ids, keep in ((batch.tokens, batch.keep), (batch.source, batch.source_keep))
    )
    tokens = batch.tokens.scatter(1, first.sum(1, keepdim=True) - 1, vocabulary.sep)
    tokens, keep = torch.cat([tokens, batch.source], 1), torch.cat([first, second], 1)
    segments = torch.cat([torch.zeros_like(batch.tokens), torch.ones_like(batch.source)], 1)
    # a stable sort moves the padding between the two to the end
    order = (~keep).to(torch.uint8).sort(dim=1, stable=True).indices[:, : int(keep.sum(1).max())]
    tokens, keep, segments = (x.gather(1, order) for x in (tokens, keep, segments))
    tokens, segments = tokens.masked_fill(~keep, vocabulary.pad), segments.masked_fill(~keep, 0)
    return batch.replace(tokens=tokens, keep=keep, segments=segments, source=None, source_keep=None)


def opened(batch: Batch, token: int) -> Batch:
    """Put a token before every row."""

    def before(ids: Tensor | None, value: int) -> Tensor | None:
        return None if ids is None else F.pad(ids, (1, 0), value=value)

    return batch.replace(
        tokens=before(batch.tokens, token), keep=before(batch.keep, 1), segments=before(batch.segments, 0)
    )
