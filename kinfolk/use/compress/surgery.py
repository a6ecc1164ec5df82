"""Structured pruning: cut heads, neurons and layers out of a model's spec and its weights.

What is cut is really gone: a model without half of its heads is an ordinary model with half as many, and computes
what the whole one computes with those heads silenced.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.errors import SpecError
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.linear_maps import Mapped
from kinfolk.layers.mixers.adaptive_span import Unlimited
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.mixers.talking_heads import Silent
from kinfolk.layers.part import Part
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import Rotary
from kinfolk.models.model import Model, Transformer
from kinfolk.ops.patterns.leaves import PerHead

Weights = dict[str, Tensor]
STACKS = ("encoder", "decoder")


@dataclasses.dataclass(frozen=True, order=True)
class CutPlace:
    """A part of a model: which stack, which of its blocks, which part of that."""

    stack: str
    block: int
    part: int

    @property
    def path(self) -> str:
        """The path of its module."""
        return f"{self.stack}.blocks.{self.block}.parts.{self.part}"


def depth(model: Model, stack: str) -> Any:
    """Return a stack that is a list of blocks, or say that it is none."""
    found = getattr(model, stack)
    if not (hasattr(found, "blocks") and hasattr(found, "order")):
        raise SpecError(f"{stack}: of kind {found.kind!r}, which is no list of blocks that could be cut")
    return found


def parts(model: Model) -> Iterator[tuple[CutPlace, Part]]:
    """Yield every part of a model."""
    for stack in STACKS:
        if getattr(model, stack) is not None:
            for i, block in enumerate(depth(model, stack).blocks):
                for j, part in enumerate(block.parts):
                    yield CutPlace(stack, i, j), part


def with_part(model: Model, place: CutPlace, part: Part) -> Model:
    """Return a model with one part exchanged."""
    stack = depth(model, place.stack)
    blocks = list(stack.blocks)
    inside = list(blocks[place.block].parts)
    inside[place.part] = part
    blocks[place.block] = blocks[place.block].replace(parts=tuple(inside))
    return model.replace(**{place.stack: stack.replace(blocks=tuple(blocks))})


def rebuild(model: Model, weights: Weights) -> Transformer:
    """Build a model around weights that fit it."""
    with torch.random.fork_rng(devices=[]):
        made = Transformer(model)
    # before it is filled: numbers that are copied into others are rounded to theirs
    made.to(next(x.dtype for x in weights.values() if x.is_floating_point()))
    made.load_state_dict(weights)
    return made


def weights_of(model: Transformer) -> Weights:
    """Return the weights of a model, apart from it."""
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


def keep_heads(model: Model, weights: Weights, place: CutPlace, heads: Sequence[int]) -> tuple[Model, Weights]:
    """Keep some heads of an attention: rows of its query, key and value maps, columns of its output map."""
    part = _attention(model, place)
    n_heads, width = part.n_heads, part.d_head or model.d_model // part.n_heads
    kept = sorted(set(heads))
    if not kept or kept[0] < 0 or kept[-1] >= n_heads:
        raise SpecError(f"{place.path}: keeping heads {list(heads)} of {n_heads} leaves nothing or names none of them")
    shared = part.n_kv_heads == 1 and n_heads > 1
    cut = dict(weights)
    mine, own = _rows(kept, width), list(range(width)) if shared else _rows(kept, width)
    if isinstance(part, Attention):
        n_kv = 1 if shared else n_heads
        starts = (0, n_heads * width, (n_heads + n_kv) * width)
        rows = [start + r for start, these in zip(starts, (mine, own, own), strict=True) for r in these]
        _select(cut, f"{place.path}.qkv", rows)
    else:
        _select(cut, f"{place.path}.q", mine)
        n_kv = 1 if shared else n_heads
        _select(cut, f"{place.path}.kv", [start + r for start in (0, n_kv * width) for r in own])
    name = f"{place.path}.out.weight"
    cut[name] = cut[name][:, mine].clone()
    return with_part(model, place, part.replace(n_heads=len(kept), d_head=width)), cut


def keep_neurons(model: Model, weights: Weights, place: CutPlace, neurons: Sequence[int]) -> tuple[Model, Weights]:
    """Keep some neurons of a feed-forward: rows of its first map, columns of its second."""
    part = dict(parts(model))[place]
    if type(part) not in (Dense, Gated):
        raise SpecError(f"{place.path}: neurons of a part of kind {part.kind!r} cannot be cut out")
    assert isinstance(part, Dense | Gated)
    kept = sorted(set(neurons))
    if not kept or kept[0] < 0 or kept[-1] >= part.d_ff:
        raise SpecError(
            f"{place.path}: keeping {len(kept)} of {part.d_ff} neurons leaves nothing or names none of them"
        )
    cut = dict(weights)
    packs = 2 if isinstance(part, Gated) else 1
    _select(cut, f"{place.path}.widen", [pack * part.d_ff + n for pack in range(packs) for n in kept])
    name = f"{place.path}.narrow.weight"
    cut[name] = cut[name][:, kept].clone()
    return with_part(model, place, part.replace(d_ff=len(kept))), cut


def keep_layers(model: Model, weights: Weights, stack: str, layers: Sequence[int]) -> tuple[Model, Weights]:
    """Keep some layers of a stack, in their order; blocks that no layer runs any more go with them."""
    whole = depth(model, stack)
    kept = sorted(set(layers))
    if not kept or kept[0] < 0 or kept[-1] >= len(whole.order):
        raise SpecError(f"{stack}: keeping layers {list(layers)} of {len(whole.order)} leaves nothing or names none")
    order = [whole.order[n] for n in kept]
    blocks = sorted(set(order))
    place = {old: new for new, old in enumerate(blocks)}
    changed = whole.replace(blocks=tuple(whole.blocks[i] for i in blocks), order=tuple(place[i] for i in order))
    cut: Weights = {}
    for name, value in weights.items():
        if not name.startswith(f"{stack}.blocks."):
            cut[name] = value
            continue
        number, _, rest = name.removeprefix(f"{stack}.blocks.").partition(".")
        if int(number) in place:
            cut[f"{stack}.blocks.{place[int(number)]}.{rest}"] = value
    return model.replace(**{stack: changed}), cut


def share_layers(
    model: Model, weights: Weights, stack: str, runs: Sequence[int], block: Weights | int
) -> tuple[Model, Weights]:
    """Let some layers of a stack run one block: that of one of them, or one with given weights, by their names in it.

    Blocks that no layer runs any more go. Parameters get fewer, operations do not (Lan et al. 2020).
    """
    whole = depth(model, stack)
    numbers = [whole.order[n] for n in runs]
    for other in numbers[1:]:
        if whole.blocks[other] != whole.blocks[numbers[0]]:
            raise SpecError(f"{stack}: blocks {numbers[0]} and {other} are built differently, so they cannot be one")
    chosen = block if isinstance(block, int) else numbers[0]
    order = tuple(chosen if n in runs else i for n, i in enumerate(whole.order))
    cut = dict(weights)
    if not isinstance(block, int):
        cut |= {f"{stack}.blocks.{chosen}.{name}": x for name, x in block.items()}
    changed = model.replace(**{stack: whole.replace(order=order)})
    return keep_layers(changed, cut, stack, range(len(order)))


def block_weights(weights: Weights, stack: str, block: int) -> Weights:
    """Return the weights of a block, by their names in it."""
    prefix = f"{stack}.blocks.{block}."
    return {name.removeprefix(prefix): x for name, x in weights.items() if name.startswith(prefix)}


def _attention(model: Model, place: CutPlace) -> Attention | CrossAttention:
    part = dict(parts(model))[place]
    if type(part) not in (Attention, CrossAttention):
        why = "; cut heads before maps are exchanged" if isinstance(part, Mapped) else ""
        raise SpecError(f"{place.path}: heads of a part of kind {part.kind!r} cannot be cut out{why}")
    assert isinstance(part, Attention | CrossAttention)
    if part.n_kv_heads not in (0, 1, part.n_heads):
        raise SpecError(
            f"{place.path}.n_kv_heads: {part.n_kv_heads} groups of heads share keys; cut all or none of one"
        )
    if isinstance(part, Attention):
        fields: dict[str, Any] = {"position": (NoPosition, Rotary), "span": Unlimited, "talk": Silent}
        for field, free in fields.items():
            value = getattr(part, field)
            if not isinstance(value, free):
                raise SpecError(f"{place.path}.{field}: {value.kind!r} has numbers of its own for each head")
        if isinstance(part.pattern, PerHead):
            raise SpecError(f"{place.path}.pattern: every head has its own")
    return part


def _rows(heads: Sequence[int], width: int) -> list[int]:
    return [h * width + i for h in heads for i in range(width)]


def _select(weights: Weights, path: str, rows: Sequence[int]) -> None:
    for name in (f"{path}.weight", f"{path}.bias"):
        if name in weights:
            weights[name] = weights[name][list(rows)].clone()
