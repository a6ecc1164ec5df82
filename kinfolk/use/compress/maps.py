"""Replace the linear maps of a trained model by low-rank, int8 or pruned ones, and back."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.layers.linear_maps import Int8, LinearMap, LowRank, Mapped, Rank, exchange, linears, quantise
from kinfolk.layers.module import Linear
from kinfolk.layers.part import Part
from kinfolk.layers.pruned import Pruned
from kinfolk.models.model import Model, Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.ops.activated_linear import Activation, activate
from kinfolk.use.compress.surgery import CutPlace, Weights, parts, rebuild, with_part


def places(model: Transformer) -> dict[CutPlace, dict[str, Linear]]:
    """Return the parts of a model that have plain maps, and those by name."""
    found = {}
    for place, _ in parts(model.spec):
        own = dict(linears(model.get_submodule(place.path)))
        if own:
            found[place] = own
    return found


def rank_for(d_in: int, d_out: int, share: float) -> int:
    """Return the rank at which two maps have 1 - share of the weights of one."""
    return max(1, int((1 - share) * d_in * d_out / (d_in + d_out)))


def factors(weight: Tensor, rank: int, second: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Return the two matrices [out, r], [r, in] whose product is nearest to one.

    Without `second` nearest is the sum of squared differences (Eckart and Young 1936). With $C = E[x x^\top]$ of what
    goes into the map it is the mean squared difference of what comes out: the best of rank r projects outputs onto
    the first r left singular vectors of $W C^{1/2}$. Both get the same size, each of the r numbers between them.
    """
    wide = weight.double()
    left = torch.linalg.svd(wide if second is None else wide @ _root(second.double()), full_matrices=False)[0]
    outer = left[:, :rank]
    inner = outer.mT @ wide
    size = inner.norm(dim=1).clamp(min=1e-30).sqrt()
    return (outer * size).to(weight.dtype), (inner / size[:, None]).to(weight.dtype)


def factorise(
    model: Model,
    weights: Weights,
    place: CutPlace,
    ranks: Mapping[str, int],
    seconds: Mapping[str, Tensor] | None = None,
) -> tuple[Model, Weights]:
    """Make two maps of each map of a part that is named, and leave the others whole."""
    cut = dict(weights)
    for name, rank in ranks.items():
        path = f"{place.path}.{name}"
        outer, inner = factors(cut.pop(f"{path}.weight"), rank, None if seconds is None else seconds[name])
        cut[f"{path}.inner.weight"], cut[f"{path}.outer.weight"] = inner, outer
        _move(cut, f"{path}.bias", f"{path}.outer.bias")
    part = LowRank(part=_plain(model, place), ranks=tuple(Rank(map=name, rank=rank) for name, rank in ranks.items()))
    return with_part(model, place, part), cut


def make_whole(
    model: Model, weights: Weights, place: CutPlace, names: Sequence[str], activations: Literal["int8", "float"]
) -> tuple[Model, Weights]:
    """Quantize the maps of a part to int8."""
    cut = dict(weights)
    for name in names:
        path = f"{place.path}.{name}"
        cut[f"{path}.whole"], cut[f"{path}.step"] = quantise(cut.pop(f"{path}.weight"))
        _move(cut, f"{path}.bias", f"{path}.offset")
    return with_part(model, place, Int8(part=dict(parts(model))[place], activations=activations)), cut


def make_prunable(
    model: Model,
    weights: Weights,
    place: CutPlace,
    names: Sequence[str],
    share: float,
    method: Literal["movement", "magnitude"],
) -> tuple[Model, Weights]:
    """Let the maps of a part lose weights as they learn."""
    cut, pruned = dict(weights), Pruned(part=dict(parts(model))[place], share=share, method=method)
    for name in names:
        path = f"{place.path}.{name}"
        for what in ("weight", "bias"):
            _move(cut, f"{path}.{what}", f"{path}.whole.{what}")
        if method == "movement":
            cut[f"{path}.scores"] = torch.zeros_like(cut[f"{path}.whole.weight"])
    return with_part(model, place, pruned), cut


def plain(model: Transformer) -> Transformer:
    """Return a model with plain maps in the place of all others, which computes the same."""
    while any(isinstance(part, Mapped) for _, part in parts(model.spec)):
        model = rebuild(*peeled(model, Mapped))
    return model


@torch.no_grad()
def peeled(model: Transformer, kind: type[Mapped]) -> tuple[Model, Weights]:
    """Undo what was done last to the maps of parts: multiplied out, as floating point, zero where pruned."""
    spec, weights = model.spec, {name: x.detach().clone() for name, x in model.state_dict().items()}
    for place, part in parts(model.spec):
        if not isinstance(part, kind):
            continue
        for name, other in model.get_submodule(place.path).named_modules():
            if isinstance(other, part.makes):
                path = f"{place.path}.{name}"
                weights = {key: x for key, x in weights.items() if not key.startswith(f"{path}.")}
                weights[f"{path}.weight"] = other.weight.detach().clone()
                if other.bias is not None:
                    weights[f"{path}.bias"] = other.bias.detach().clone()
        spec = with_part(spec, place, part.part)
    return spec, weights


def seconds_of(learner: Learner, batches: Sequence[Batch]) -> dict[CutPlace, dict[str, Tensor]]:
    """Return the mean of x times itself over what goes into each plain map of a model."""
    with watched(learner.model) as found, torch.no_grad():
        for batch in batches:
            learner(batch)
    return {place: {name: one.second / max(1, one.n) for name, one in own.items()} for place, own in found.items()}


class WatchedMap(LinearMap):
    """A map that adds up products of what goes into it."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.inside = linear.in_features, linear.out_features, linear
        self.second, self.n = torch.zeros(self.in_features, self.in_features, dtype=torch.float64), 0

    @property
    def weight(self) -> Tensor:
        return self.inside.weight

    @property
    def bias(self) -> Tensor | None:
        return self.inside.bias

    def forward(self, x: Tensor) -> Tensor:
        self._see(x)
        return self.inside(x)

    def after(self, u_BLF: Tensor, activation: Activation) -> Tensor:
        self._see(activate(u_BLF, activation))
        return self.inside.after(u_BLF, activation)

    def after_gate(self, u_BLf: Tensor, activation: Activation) -> Tensor:
        inner, straight = u_BLf.chunk(2, -1)
        self._see(activate(inner, activation) * straight)
        return self.inside.after_gate(u_BLf, activation)

    def _see(self, x: Tensor) -> None:
        rows = x.detach().flatten(0, -2).double()
        self.second += rows.mT @ rows
        self.n += len(rows)


@contextlib.contextmanager
def watched(model: Transformer) -> Iterator[dict[CutPlace, dict[str, WatchedMap]]]:
    """Watch what goes into the plain maps of a model for a while."""
    own = places(model)
    found = {place: {name: WatchedMap(linear) for name, linear in some.items()} for place, some in own.items()}
    for place, some in found.items():
        others: dict[str, nn.Module] = dict(some)
        exchange(model.get_submodule(place.path), others)
    try:
        yield found
    finally:
        for place, before in own.items():
            back: dict[str, Any] = dict(before)
            exchange(model.get_submodule(place.path), back)


def _root(second: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(second)
    return vectors * values.clamp(min=0).sqrt()


def _plain(model: Model, place: CutPlace) -> Part:
    part = dict(parts(model))[place]
    if isinstance(part, Mapped):
        raise SpecError(f"{place.path}: its maps are of kind {part.kind!r} already; `plain` undoes that")
    return part


def _move(weights: Weights, old: str, new: str) -> None:
    if old in weights:
        weights[new] = weights.pop(old)
