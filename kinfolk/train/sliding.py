"""Two ways to score a text whose every token sees the `length` tokens before it, and what a token of each takes.

Sliding: a window for every token, of which only the last is scored. Cached: the text once, in segments, with what may
still be seen kept (Dai et al. 2019, section 4.5). A cached token also knows through its neighbours what they saw, so
that the two agree where both see the whole text so far, which is in the first window.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError, SpecError
from kinfolk.data.splits.split import Split, TextSplit
from kinfolk.family.assembly import with_mixer
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.part import Mixer
from kinfolk.layers.positions.position import NoPosition
from kinfolk.models.model import Model, State, Transformer, build_model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import Causal, Pattern, Window

SEGMENT = 64
"""Tokens that cached evaluation reads at a time."""


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per token at one attention length, and nats per token at the sampled positions.

    cached, sliding: of the model itself. fused: a sliding window of the same layers without positions in their scores,
        on PyTorch's fused kernel: no sliding window is faster.
    difference: the largest between the two losses of a token where both ways see the same.
    """

    length: int
    samples: int
    segments: int
    cached: float
    sliding: float
    fused: float
    cached_nats: float
    sliding_nats: float
    difference: float

    @property
    def ratio(self) -> float:
        """How many cached tokens one of a sliding window takes."""
        return self.sliding / self.cached

    @property
    def fused_ratio(self) -> float:
        """The same against the fused kernel."""
        return self.fused / self.cached


@torch.inference_mode()
def compare(model: Transformer, split: Split, length: int, samples: int = 3) -> Timing:
    """Time both ways on the beginning of a text, side by side: some cached segments, a window, segments, a window, …"""
    if length < 1 or samples < 1:
        raise SpecError(f"sliding: the attention length and the samples must be at least 1, got {length} and {samples}")
    if not isinstance(split, TextSplit):
        raise DataError("sliding: windows slide over running text, not over pairs")
    own, bare = (_variant(model, *what) for what in ((Window(left=length - 1), False), (Causal(), True)))
    tokens = torch.from_numpy(split.window(0, length + 2 * samples * SEGMENT + 1).astype("int64"))[None]
    limit = own.limit
    if limit is not None and limit < tokens.shape[1]:
        raise SpecError(
            f"sliding: the model has {limit} positions, and {tokens.shape[1] - 1} are needed; use a shorter one"
        )
    losses, took = [], []
    reading = _read(own, tokens, length)
    # the first window fills the memory, and is not timed
    losses.append(next(reading)[0])
    slides, plain, found = [], [], []
    for at in _positions(length, samples):
        for _ in range(2):
            more, seconds = next(reading)
            losses.append(more)
            took.append(seconds)
        window = tokens[:, at + 1 - length : at + 2]
        loss, seconds = _slide(own, window)
        found.append(loss)
        slides.append(seconds)
        plain.append(_slide(bare, window)[1])
    kept_L = torch.cat(losses)[list(_positions(length, samples))]
    slid_L = torch.stack(found)
    return Timing(
        length=length,
        samples=samples,
        segments=len(took),
        cached=statistics.median(took) / SEGMENT,
        sliding=statistics.median(slides),
        fused=statistics.median(plain),
        cached_nats=float(kept_L.mean()),
        sliding_nats=float(slid_L.mean()),
        difference=abs(float(kept_L[0] - slid_L[0])),
    )


def _positions(length: int, samples: int) -> Iterator[int]:
    """Yield what is scored by sliding: the end of the first window, then one of every two segments."""
    yield from (length - 1 + 2 * SEGMENT * i for i in range(samples))


def _read(model: Transformer, tokens_1L: Tensor, first: int) -> Iterator[tuple[Tensor, float]]:
    """Read a text in segments with a state; yield the losses and the seconds of the first window, then of each."""
    state = model.new_state(1, tokens_1L.shape[1])
    begun, losses, at = time.perf_counter(), [], 0
    while at < first:
        n = min(SEGMENT, first - at)
        losses.append(_losses(model, tokens_1L[:, at : at + n + 1], state))
        at += n
    yield torch.cat(losses), time.perf_counter() - begun
    while at + SEGMENT < tokens_1L.shape[1]:
        begun = time.perf_counter()
        segment = _losses(model, tokens_1L[:, at : at + SEGMENT + 1], state)
        at += SEGMENT
        yield segment, time.perf_counter() - begun


def _slide(model: Transformer, window_1L: Tensor) -> tuple[Tensor, float]:
    """Score the last token of a window by running all of it."""
    begun = time.perf_counter()
    hidden = _run(model, window_1L[:, :-1], None)[:, -1:]
    loss = model.head.losses(hidden, window_1L[:, -1:])[0, 0]
    return loss, time.perf_counter() - begun


def _losses(model: Transformer, tokens_1L: Tensor, state: State) -> Tensor:
    return model.head.losses(_run(model, tokens_1L[:, :-1], state), tokens_1L[:, 1:])[0]


def _run(model: Transformer, tokens_1L: Tensor, state: State | None) -> Tensor:
    return model.run(Batch(index=torch.zeros(1), tokens=tokens_1L), state).hidden


def _variant(model: Transformer, pattern: Pattern, bare: bool) -> Transformer:
    """Return the model with the same weights and another pattern, if asked without positions in its scores."""
    spec: Model = model.spec
    if spec.topology != "decoder" or not isinstance(spec.decoder, Stack):
        raise SpecError(f"sliding: needs a decoder alone that is a stack of blocks, not a model of {spec.topology!r}")
    for part in (part for block in spec.decoder.blocks for part in block.parts):
        if isinstance(part, Mixer) and not isinstance(part, Attention):
            raise SpecError(f"sliding: {part.kind!r} has no window whose length could be set, only attention has")

    def change(look: Attention) -> Attention:
        return look.replace(pattern=pattern, position=NoPosition() if bare else look.position)

    other = build_model(with_mixer(spec, change)).to(next(model.parameters()))
    weights = model.state_dict()
    other.load_state_dict({name: weights[name] for name in other.state_dict()})
    return other.eval()
