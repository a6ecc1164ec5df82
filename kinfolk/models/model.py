"""Transformer model: an embedding, an encoder, a decoder or both, and a head, described by one spec."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.annotations import Annotation, Parse, Segments, TextTokens, Visible
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context, Padding, SideLosses, Taps
from kinfolk.core.device import host, send
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.layers.heads.head import HeadModule
from kinfolk.layers.init import seeded
from kinfolk.layers.module import Module
from kinfolk.layers.part import PartModule
from kinfolk.layers.positions.position import PositionModule
from kinfolk.models.model_spec import Model
from kinfolk.models.prefix import last_seen
from kinfolk.models.room import check_memory
from kinfolk.ops.dependency_tree import grow

__all__ = ["Model", "Output", "State", "Transformer", "build_model"]


@dataclasses.dataclass
class State:
    """Decoding state: that of every layer, and the next position."""

    layers: list[list[Any]]
    next_pos: int = 0  # of every example, or of the furthest where they differ
    next_pos_B: Tensor | None = None  # of each example, where they differ; on the host
    encoder_output: EncoderOutput | None = None

    def select(self, rows_B: Tensor) -> None:
        """Make example i a copy of example `rows[i]`."""
        for part in self.parts.values():
            part.select(rows_B)
        if self.next_pos_B is not None:
            self.next_pos_B = self.next_pos_B[host(rows_B)]
        if self.encoder_output is not None:
            self.encoder_output = self.encoder_output.select(rows_B)

    def rewind(self, position: int) -> None:
        """Go on from an earlier position, where every part `rewinds` and all examples are at one position."""
        if self.next_pos_B is not None or position > self.next_pos:
            raise ShapeError(f"decoding is at position {self.next_pos} and cannot be rewound to {position}")
        self.next_pos = position

    @property
    def parts(self) -> dict[str, Any]:
        """The states of the parts that have one, by layer and part."""
        named = ((f"{i}.{j}", part) for i, layer in enumerate(self.layers) for j, part in enumerate(layer))
        return {name: part for name, part in named if part is not None}

    def forget(self, rows_B: Tensor) -> None:
        """Between segments: reset these examples."""
        for part in self.parts.values():
            part.forget(rows_B)
        self.next_pos = 0 if bool(rows_B.all()) else self.next_pos

    def settle(self) -> None:
        """After a segment: remember it. Its padding is remembered as such, so all examples stay in step."""
        for part in self.parts.values():
            part.settle()
        self.next_pos_B = None


@dataclasses.dataclass(eq=False)
class Output:
    """Output of a pass. Logits are made on demand: a loss does not need them all at once."""

    hidden: Tensor
    head: HeadModule
    taps: dict[str, Tensor]
    side_losses: dict[str, Tensor]
    state: State | None = None
    keep: Tensor | None = None  # [B, L] which states are of real tokens; None: all are

    @functools.cached_property
    def logits(self) -> Tensor:
        """Scores over the vocabulary, [B, L, V]; or whatever else the head scores."""
        return self.head.answer(self.hidden, self.keep)


class Transformer(Module):
    """Transformer that a `Model` spec describes."""

    def __init__(self, spec: Model) -> None:
        super().__init__()
        check_memory(spec)
        self.spec, dims = spec, spec.dims
        self.generation = GenerationIds()
        self.embedding = spec.embedding.build(dims)
        self.encoder = None if spec.encoder is None else spec.encoder.build(dims)
        self.bridge = spec.bridge.build(spec.encoder, spec.decoder)
        back = dataclasses.replace(dims, direction="past", prompt=spec.prompt)
        self.decoder = None if spec.decoder is None else spec.decoder.build(back)
        self.head = spec.head.build(spec.head_dims, self.embedding)

    def forward(
        self,
        tokens: Tensor,
        target: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        state: State | None = None,
        taps: bool | Iterable[str] = False,
    ) -> Output:
        """Run on token ids [B, L]; an encoder-decoder takes `(source, target)`. `keep` is false at padding of `tokens`.

        With `state` (see `new_state`), tokens go on where the last call stopped, and an encoder-decoder whose source is
        already in the state takes the target alone.
        """
        index = torch.empty(0, dtype=torch.long)
        if self.spec.topology != "encoder-decoder":
            if target is not None:
                raise ShapeError(f"a model of topology {self.spec.topology!r} takes one sequence, got two")
            return self.run(Batch(index=index, tokens=tokens, keep=keep), state, taps)
        if target is None:
            if state is None or state.encoder_output is None:
                raise ShapeError("an encoder-decoder takes two sequences: model(source, target)")
            return self.run(Batch(index=index, tokens=tokens, keep=keep), state, taps)
        return self.run(Batch(index=index, tokens=target, source=tokens, source_keep=keep), state, taps)

    def run(self, batch: Batch, state: State | None = None, taps: bool | Iterable[str] = False) -> Output:
        """Run on a batch. The one path: training, evaluation, decoding and inspection all come through here."""
        listener = Taps(None if taps is True else frozenset(taps)) if taps else None
        ctx = self._context(batch, state, listener)
        if self.decoder is None:
            assert self.encoder is not None
            x_BLD, ctx = self._through(self.encoder, "encoder", batch, ctx, state.layers if state else None)
        else:
            if self.encoder is not None:
                ctx = ctx.replace(encoder_output=self._encode(batch, state, ctx))
            x_BLD, ctx = self._through(self.decoder, "decoder", batch, ctx, state.layers if state else None)
        if state is not None:
            _advance(state, batch)
        # inserted facts are read, but not scored
        text = batch.annotation(TextTokens)
        keep_BL = text.keep_BL if text is not None else None if ctx.padding is None else ctx.padding.keep_BL
        return Output(x_BLD, self.head, listener.found if listener else {}, dict(ctx.side_losses or {}), state, keep_BL)

    def new_state(self, batch_size: int, max_len: int) -> State:
        """Return an empty state for decoding `batch_size` examples up to `max_len` positions."""
        if self.decoder is None:
            raise SpecError("an encoder does not decode: it has no causal stack")
        return State(self.decoder.new_state(batch_size, max_len))

    def new_memory(self) -> State | None:
        """Return an empty state to carry from segment to segment in training; None if no layer carries anything."""
        stacks = [stack for stack in (self.encoder, self.decoder) if stack is not None]
        layers = stacks[0].new_memory() if len(stacks) == 1 else []
        return State(layers) if any(part is not None for layer in layers for part in layer) else None

    def set_recompute(self, mode: str) -> None:
        """Choose what the backward pass makes again instead of remembering: "none" or "blocks"."""
        for stack in (self.encoder, self.decoder):
            if stack is not None:
                stack.recompute = mode

    @property
    def limit(self) -> int | None:
        """The longest sequence it can take; None if there is no bound."""
        limits = (m.limit for m in self.modules() if isinstance(m, PositionModule | PartModule))
        return min((n for n in limits if n is not None), default=None)

    @property
    def n_params(self) -> int:
        """Number of parameters, shared ones once."""
        return sum(p.numel() for p in self.parameters())

    def _context(self, batch: Batch, state: State | None, taps: Taps | None) -> Context:
        padding = None if batch.keep is None else Padding.of(batch.keep)
        visible = batch.annotation(Visible)
        start, pos_BL, pairs_BLM = 0, batch.positions, None if visible is None else visible.pairs_BLM
        if state is not None:
            # packed documents are separated by their groups; positions go on from segment to segment
            start, pos_BL = state.next_pos, None if pairs_BLM is None else batch.positions
            if state.next_pos_B is not None:
                pos_BL = send(state.next_pos_B[:, None] + torch.arange(batch.tokens.shape[1]), batch.tokens.device)
        annotations = _annotations(batch) if self.decoder is None else ()
        until_BL = last_seen(batch, self.spec.prompt, state is not None and not state.next_pos)
        if pairs_BLM is not None or until_BL is not None:
            annotations = (*annotations, Visible(pairs_BLM, until_BL))
        return Context(
            start=start,
            pos_BL=pos_BL,
            padding=padding,
            group_BL=batch.document,
            annotations=annotations,
            taps=taps,
            side_losses=SideLosses(),
        )

    def _encode(self, batch: Batch, state: State | None, ctx: Context) -> EncoderOutput:
        if state is not None and state.encoder_output is not None:
            return state.encoder_output
        assert self.encoder is not None
        if batch.source is None:
            raise ShapeError("an encoder-decoder needs a source: model(source, target)")
        padding = None if batch.source_keep is None else Padding.of(batch.source_keep)
        own = Context(padding=padding, annotations=_annotations(batch), taps=ctx.taps, side_losses=ctx.side_losses)
        with own.scope("encoder"):
            x_BMD, inner = self.embedding(batch.source, own), self.embedding.inside(batch.source, own)
            output: EncoderOutput = self.bridge(self.encoder, x_BMD, inner)
        if state is not None:
            state.encoder_output = output
        return output

    def _through(self, stack: nn.Module, name: str, batch: Batch, ctx: Context, layers: Any) -> tuple[Tensor, Context]:
        inner = self.embedding.inside(batch.tokens, ctx)
        with ctx.scope(name):
            return stack(self.embedding(batch.tokens, ctx, batch.segments), inner, layers), inner


def _annotations(batch: Batch) -> tuple[Annotation, ...]:
    """Return what the layers of an encoder read of a batch; of a parse its tree."""
    segments = () if batch.segments is None else (Segments(batch.segments),)
    others = (record for record in batch.annotations if record.for_layers and type(record) is not Visible)
    read = (grow(record.heads_BW, record.words_BL) if isinstance(record, Parse) else record for record in others)
    return (*read, *segments)


def _advance(state: State, batch: Batch) -> None:
    """Move each example on by the number of its real tokens."""
    n = batch.tokens.shape[1]
    if batch.keep is None:
        state.next_pos += n
        if state.next_pos_B is not None:
            state.next_pos_B = state.next_pos_B + n
    else:
        lengths_B = host(batch.keep).sum(1)
        state.next_pos_B = lengths_B + (state.next_pos if state.next_pos_B is None else state.next_pos_B)
        state.next_pos += n


def build_model(spec: Model, seed: int = 0) -> Transformer:
    """Build a model with weights drawn from a seed; the caller's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        model = Transformer(spec)
    seeded(spec.init, model, spec.dims, seed)
    return model
