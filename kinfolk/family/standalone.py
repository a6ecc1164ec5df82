"""One layer alone: a mixer, feed-forward, position encoding or attention pattern as an `nn.Module` of its own.

    layer = kf.layer("performer", d_model=64, n_heads=4)
    y = layer(x)                                # [B, L, 64] to [B, L, 64]
    state = layer.start(batch_size=2, max_len=512)
    y, state = layer.step(x[:, :1], state)      # decode: one position, or several at once

The module is the one that a model builds: same weights, same outputs, same gradients, same KV cache or recurrent state.
Residual connection and norm around it are the caller's.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.annotations import Annotation
from kinfolk.core.context import Context, Padding, SideLosses
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import ShapeError, SpecError, suggest
from kinfolk.core.plain import from_plain, to_plain
from kinfolk.core.spec import Spec, choices
from kinfolk.family import registry
from kinfolk.family.changes import parted
from kinfolk.family.grammar import load_kinds
from kinfolk.family.making import make
from kinfolk.layers.init import Init, Xavier, seeded
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.module import Dims, Module
from kinfolk.layers.part import Mixer, Part, PartModule
from kinfolk.layers.positions.position import Position, PositionModule
from kinfolk.ops.patterns.leaves import Causal, Full, Pattern


def layer(
    name: str | Part | Position,
    *,
    d_model: int,
    causal: bool | None = None,
    max_len: int = 1024,
    index: int = 0,
    seed: int = 0,
    **fields: Any,
) -> "Layer":
    """Return one layer as a module `x -> y` of shape [B, L, d_model].

    name: a kind of mixer ("attention", "performer"), feed-forward ("gated"), position ("rotary": attention with it;
    "sinusoid": what is added to x) or pattern ("window": attention under it), a relative ("gla": the mixer of its layer
    `index`), or a spec. `fields` are those of the kind (`kin axes mixer`), of a relative its numbers.
    causal: nothing attends to later positions. By default yes, and for a relative as in its own stack.
    """
    if not isinstance(name, str):
        past = causal is not False
        return Layer(_directed(name, past) if past else name, _dims(d_model, max_len, past), Xavier(), seed)
    known = {axis: _kinds(axis) for axis in (Part, Position, Pattern)}
    axes = [axis for axis, kinds in known.items() if name in kinds]
    if not axes:
        return _of_relative(name, d_model, causal, max_len, index, seed, fields)
    # one name on two axes ("axial", a position and a pattern): the one that has the fields
    axis = min(axes, key=lambda axis: len(set(fields) - set(_names(known[axis][name]))))
    past = causal is not False
    if "d_ff" in _names(known[axis][name]):
        fields.setdefault("d_ff", 4 * d_model)
    spec = _spec(axis, known[axis][name], fields, past, d_model)
    return Layer(spec, _dims(d_model, max_len, past), Xavier(), seed)


@dataclasses.dataclass
class LayerState:
    """State of decoding: the layer's KV cache or recurrent state, the next position, and the encoder output."""

    part: Any
    next_pos: int = 0
    encoder_output: EncoderOutput | None = None

    def select(self, rows_B: Tensor) -> None:
        """Make example i a copy of example `rows[i]`, as beam search does."""
        if self.part is not None:
            self.part.select(rows_B)
        if self.encoder_output is not None:
            self.encoder_output = self.encoder_output.select(rows_B)


class Layer(Module):
    """One part of a model alone. `side_losses` holds the weighted side losses of the last pass (load balancing)."""

    def __init__(self, spec: Part | Position, dims: Dims, init: Init, seed: int) -> None:
        super().__init__()
        self.spec, self.dims = spec, dims
        self.side_losses: dict[str, Tensor] = {}
        with torch.random.fork_rng(devices=[]):
            self.part: Any = spec.build(dims) if isinstance(spec, Part) else Added(spec.build(dims))
        self.shared = nn.ModuleList(dims.shared.modules.values())  # a stack would own these
        seeded(init, self, dims, seed)

    def forward(
        self,
        x: Tensor,
        *,
        keep: Tensor | None = None,
        source: Tensor | None = None,
        source_keep: Tensor | None = None,
        annotations: tuple[Annotation, ...] = (),
    ) -> Tensor:
        """Run on [B, L, d_model].

        keep: [B, L], false at padding. source, source_keep: the encoder states [B, M, d_model] that cross-attention and
        attentional recurrent layers read. annotations: what some layers read besides (`kinfolk.core.annotations`).
        """
        self._check(x)
        padding = None if keep is None else Padding.of(keep)
        ctx = Context(padding=padding, annotations=annotations, encoder_output=_encoded(source, source_keep))
        return self._run(x, ctx, None)[0]

    def start(
        self, batch_size: int, max_len: int = 0, source: Tensor | None = None, source_keep: Tensor | None = None
    ) -> LayerState:
        """Return an empty state for decoding up to `max_len` positions (0: the layer's own `max_len`)."""
        if self.dims.direction != "past":
            raise SpecError("a layer that is not causal does not decode: build it with causal=True")
        state = self.part.new_state(batch_size, max_len or self.dims.max_len)
        return LayerState(state, encoder_output=_encoded(source, source_keep))

    def step(self, x: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        """Run on the next positions, one or several, and return their outputs with the state brought up to date."""
        self._check(x)
        ctx = Context(start=state.next_pos, encoder_output=state.encoder_output)
        y, state.part = self._run(x, ctx, state.part)
        state.next_pos += x.shape[1]
        return y, state

    def _run(self, x: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Any]:
        ctx = ctx.replace(side_losses=SideLosses())
        y, state = self.part(x, ctx, state)
        self.side_losses = dict(ctx.side_losses or {})
        return y, state

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.dims.d_model:
            raise ShapeError(
                f"a layer of width {self.dims.d_model} takes [B, L, {self.dims.d_model}], got {[*x.shape]}"
            )

    def extra_repr(self) -> str:
        return f"{self.spec.kind}, d_model={self.dims.d_model}, causal={self.dims.direction == 'past'}"


class Added(PartModule):
    """x plus an absolute position encoding."""

    def __init__(self, position: PositionModule) -> None:
        super().__init__()
        self.position = position

    def forward(self, x_BLD: Tensor, ctx: Context, state: None) -> tuple[Tensor, None]:
        return self.position.add(x_BLD, ctx, 1), None


def adds(spec: Position, dims: Dims) -> bool:
    """Tell whether a position encoding is added to x; others change queries, keys or scores of attention."""
    try:
        return type(spec.build(dims)).add is not PositionModule.add
    except SpecError:  # it asks for heads
        return False


def _of_relative(
    name: str, d_model: int, causal: bool | None, max_len: int, index: int, seed: int, numbers: dict[str, Any]
) -> "Layer":
    kinds = [kind for axis in (Part, Position, Pattern) for kind in _kinds(axis)]
    if parted(name)[0] not in registry.relatives():
        raise SpecError(f"layer: unknown {name!r}{suggest(name, [*kinds, *registry.relatives()])}")
    recipe = make(name, size="tiny", d_model=d_model, max_len=max_len, **({"n_layers": index + 1} | numbers))
    stack: Any = recipe.model.decoder or recipe.model.encoder
    blocks = [stack.blocks[i] for i in stack.order] if hasattr(stack, "order") else ()
    mixers = [part for block in blocks[index : index + 1] for part in block.parts if isinstance(part, Mixer)]
    if not mixers:
        raise SpecError(f"layer: {name} has no mixer in layer {index} of its stack ({stack.kind})")
    past = recipe.model.decoder is not None if causal is None else causal
    dims = dataclasses.replace(recipe.model.dims, direction="past" if past else "both")
    return Layer(_directed(mixers[0], past) if causal is not None else mixers[0], dims, recipe.model.init, seed)


def _spec(axis: type[Spec], cls: type[Spec], fields: dict[str, Any], past: bool, d_model: int) -> Part | Position:
    """Return the spec of a kind: a position of attention, and a pattern, inside attention of `n_heads` heads."""
    if issubclass(cls, Part):
        return _directed(_read(cls, fields), past)
    own = {key: value for key, value in fields.items() if key in _names(cls)}
    inner, others = _read(cls, own), {key: value for key, value in fields.items() if key not in own}
    if isinstance(inner, Position) and adds(inner, _dims(d_model, 8, past)):
        if set(others) - {"n_heads"}:
            raise SpecError(f"{cls.kind}: unknown field {min(others)!r}{suggest(min(others), _names(cls))}")
        return inner
    field = "pattern" if issubclass(cls, Pattern) else "position"
    return _directed(_read(Attention, others | {field: inner}), past)


def _read(cls: type[Spec], fields: dict[str, Any]) -> Any:
    plain = {key: to_plain(value) if isinstance(value, Spec) else value for key, value in fields.items()}
    return from_plain(cls, plain | {"kind": cls.kind}, cls.kind)


def _directed(spec: Any, past: bool) -> Any:
    """Return a part, and the parts inside it, that attends to the past only, or in both directions."""
    changes: dict[str, Any] = {}
    for name in _names(type(spec)) if isinstance(spec, Part) else ():
        value = getattr(spec, name)
        if isinstance(value, Pattern):
            changes[name] = _causal(value) if past else value
        elif name == "direction":
            changes[name] = "past" if past else value if value != "past" else "both"
        elif isinstance(value, Part):
            changes[name] = _directed(value, past)
        elif isinstance(value, tuple) and value and isinstance(value[0], Part):
            changes[name] = tuple(_directed(part, past) for part in value)
    return spec.replace(**changes) if changes else spec


def _causal(pattern: Pattern) -> Pattern:
    return pattern if pattern.causal else Causal() if isinstance(pattern, Full) else pattern & Causal()


def _names(cls: type[Spec]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _kinds(axis: type[Spec]) -> dict[str, type[Spec]]:
    load_kinds()
    return choices(axis)


def _dims(d_model: int, max_len: int, past: bool) -> Dims:
    return Dims(d_model, 1, max_len, 0.0, n_sublayers=2, direction="past" if past else "both", n_branches=2)


def _encoded(states: Tensor | None, keep: Tensor | None) -> EncoderOutput | None:
    return None if states is None else EncoderOutput(states, keep)
