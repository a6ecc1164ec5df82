"""Axis Objective: `prepare(batch, rng) -> batch` makes inputs and targets, `loss(output, batch) -> Loss` scores."""

import dataclasses
import functools
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.device import wide
from kinfolk.core.pieces import TokenPieces
from kinfolk.core.rng import Rng
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Module
from kinfolk.models.model import Model, Output, State, Transformer

Ids = NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Loss:
    """Sums, not means: micro-batches or processes are added up and divided once, by all targets."""

    total: Tensor  # nats over all scored targets
    count: Tensor  # how many those were
    side: Tensor  # side losses, already weighted; a mean
    measures: dict[str, tuple[Tensor, Tensor]] = dataclasses.field(default_factory=dict)  # sum and count, by name


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The ids that objectives need to know."""

    size: int
    pad: int = 0
    bos: int = 1
    eos: int = 2
    sep: int = 4
    cls: int = 5
    mask: int = 6
    start: int = 1  # the first token of an encoder-decoder's target
    n_special: int = 7
    specials: tuple[int, ...] = tuple(range(7))
    between: int = 1  # separators between two texts
    pieces: TokenPieces | None = dataclasses.field(
        default=None, compare=False, repr=False
    )  # None: every token is a word
    # how often each id occurs in what is learnt from, where an objective asks; None: not known
    counts: Ids | None = dataclasses.field(default=None, compare=False, repr=False)
    # what prepared batches know about the names in them; None: nothing
    known: "Known | None" = dataclasses.field(default=None, compare=False, repr=False)

    @functools.cached_property
    def is_special(self) -> NDArray[np.bool_]:
        """A table over the vocabulary."""
        table = np.zeros(self.size, dtype=np.bool_)
        table[list(self.specials)] = True
        return table

    @functools.cached_property
    def ordinary(self) -> Ids:
        """The ids of ordinary text tokens."""
        return np.flatnonzero(~self.is_special)

    def words(self, ids: Ids) -> Ids:
        """Return the number of the word that each token of a row belongs to, -1 of specials."""
        starts = np.ones(len(ids), dtype=np.bool_) if self.pieces is None else self.pieces.word_starts(ids)
        special = self.is_special[ids]
        starts[1:] |= special[:-1]
        return np.where(special, -1, np.cumsum(starts) - 1)


class Known(Protocol):
    """What is known about names, in tokens: see `kinfolk.objectives.knowledge`."""

    def inform(self, batch: Batch, vocabulary: "Vocabulary", limit: int | None) -> Batch:
        """Add what is known to a prepared batch; `limit` is the longest row that the model takes."""


class Learning(Protocol):
    """What an objective may use while it runs: see `Learner`."""

    model: Transformer
    partner: Module | None
    stage: int


HIDDEN, LATER, AROUND, PERMUTED = "hidden", "later", "around", "permuted"
"""Where targets are: not in what the model reads; later in its row; around each token; later in a random order."""


class Objective(Spec):
    """Axis: training objectives: what is predicted from what.

    `counts`: it asks how often each token occurs in the data. `measured`: the measure that its loss per target is.
    """

    counts: ClassVar[bool] = False
    measured: ClassVar[str] = ""

    @property
    def targets(self) -> str:
        """Where what it asks for is, relative to what the model reads: what decides which models would see it."""
        return HIDDEN

    @property
    def needs_encoder(self) -> bool:
        """True if a part of each example is for an encoder, so that a decoder alone would ignore it."""
        return False

    @property
    def reads_prefix(self) -> bool:
        """True if the beginning of each row is read in both directions by a decoder."""
        return False

    @property
    def inner(self) -> "Objective":
        """The objective that a trained model is used by: itself, or the one that it wraps for training."""
        return self

    @property
    def parts(self) -> "tuple[Objective, ...]":
        """The objectives that it consists of: itself, or those that it wraps."""
        return (self,)

    def on_topology(self, topology: str) -> "Objective":
        """Return its form for a model of this topology."""
        return self

    @property
    def extra_ids(self) -> int:
        """How many ids it needs after those of the data, sentinels for example: a model's vocabulary has them too."""
        return 0

    @property
    def passes(self) -> int:
        """How often a model runs on a prepared batch, for what that costs."""
        return 1

    def on_pairs(self) -> "Objective":
        """Return what is learnt from pairs of a source and a target instead."""
        return self

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        """Turn a batch as read into inputs and targets. Random choices depend on (seed, example) only."""
        raise NotImplementedError

    def companion(self, model: Model) -> Model | None:
        """Describe the second network that is needed for learning beside a model, and is not kept; None: none is."""
        return None

    def partner(self, model: Transformer, seed: int) -> Module | None:
        """Build what is learnt besides the model: the companion, or further heads."""
        return None

    def stage(self, progress: float, model: Model) -> int:
        """Return the number of the stage of learning, for what changes when so much of it is over."""
        return 0

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        """Run the model on a prepared batch; return what it said, and the batch with what is scored of that."""
        return learner.model.run(batch, memory), batch

    def loss(self, output: Output, batch: Batch) -> Loss:
        """Score the targets of a prepared batch, for learning."""
        assert batch.targets is not None
        total = output.head.loss(output.hidden, batch.targets)
        return Loss(total, (batch.targets != IGNORE).sum(), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Return sums and counts of what evaluation reports, by name; equal names are comparable across models."""
        if not self.measured:
            raise NotImplementedError
        return {self.measured: summed(*token_losses(output, batch))}


class Wrapper:
    """Mix-in of objectives that wrap another: like the one in their field `wraps` unless they say otherwise."""

    wraps: ClassVar[str]

    @property
    def _wrapped(self) -> Any:
        return getattr(self, self.wraps)

    @property
    def extra_ids(self) -> int:
        return self._wrapped.extra_ids

    @property
    def inner(self) -> Objective:
        return self._wrapped.inner

    @property
    def parts(self) -> tuple[Objective, ...]:
        return self._wrapped.parts

    def on_pairs(self: Any) -> Objective:
        return self.replace(**{self.wraps: self._wrapped.on_pairs()})

    def on_topology(self: Any, topology: str) -> Objective:
        return self.replace(**{self.wraps: self._wrapped.on_topology(topology)})

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        return self._wrapped.prepare(batch, rng, vocabulary)

    def loss(self, output: Output, batch: Batch) -> Loss:
        return self._wrapped.loss(output, batch)

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        return self._wrapped.measure(output, batch)


def side_loss(output: Output) -> Tensor:
    """Add up what the layers reported on the side."""
    # many small terms: their sum would be rounded away in half precision
    exact = torch.promote_types(output.hidden.dtype, torch.float32)
    return sum(output.side_losses.values(), output.hidden.new_zeros((), dtype=exact))


def summed(losses_BL: Tensor, where_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum and the number of the losses at some positions."""
    return torch.where(where_BL, wide(losses_BL), 0.0).sum(), where_BL.sum()


def token_losses(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss of every target, and which of them are scored."""
    assert batch.targets is not None
    return output.head.losses(output.hidden, batch.targets), batch.targets != IGNORE


def real(ids: Tensor, keep: Tensor | None) -> Tensor:
    """Return which tokens are real; without a mask all are."""
    return torch.ones_like(ids, dtype=torch.bool) if keep is None else keep


def real_rows(tokens: Tensor, keep: Tensor | None) -> list[Ids]:
    """Return the real tokens of each row."""
    return [(row if keep is None else row[keep[i]]).numpy() for i, row in enumerate(tokens)]


def to_front(keep: Tensor, *others: Tensor) -> list[Tensor]:
    """Move the padding of each row to its end and cut what is padding in all: the mask, then tensors like it."""
    # a stable sort keeps the order of what is real
    order = (~keep).to(torch.uint8).sort(dim=1, stable=True).indices[:, : int(keep.sum(1).max())]
    return [x.gather(1, order) for x in (keep, *others)]


def texts(batch: Batch, vocabulary: Vocabulary) -> tuple[Tensor, Tensor | None]:
    """Return the tokens of texts and which are real: all but the last, or of a pair its one joined row."""
    if batch.source is not None:
        return joined(batch, vocabulary.sep, vocabulary.pad)[:2]
    return batch.tokens[:, :-1], None if batch.keep is None else batch.keep[:, :-1]


def joined(source: Batch, separator: int, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Write `source separator target` in one row: tokens, which are real, and which belong to the target.

    The target keeps its closing token; its opening one becomes the separator.
    """
    assert source.source is not None
    s_keep, t_keep = real(source.source, source.source_keep), real(source.tokens, source.keep)
    target = source.tokens.clone()
    target[:, 0] = separator
    tokens, keep = torch.cat([source.source, target], 1), torch.cat([s_keep, t_keep], 1)
    is_target = torch.cat([torch.zeros_like(s_keep), t_keep], 1)
    is_target[:, s_keep.shape[1]] = False
    keep, tokens, is_target = to_front(keep, tokens, is_target)
    return tokens.masked_fill(~keep, pad), keep, is_target
