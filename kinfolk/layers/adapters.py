"""LoRA and adapters: small trainable modules beside frozen ones, initialised to the identity."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveFloat, PositiveInt
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.layers.linear_maps import LinearMap, Mapped
from kinfolk.layers.module import Dims, Linear, Module
from kinfolk.layers.part import Part
from kinfolk.ops.activated_linear import ACTIVATIONS, Activation


class AddedMap(LinearMap):
    """LoRA of one linear layer: the layer itself, and beside it a product of two matrices of rank `rank`."""

    def __init__(self, spec: "Lora", whole: Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.whole = whole.in_features, whole.out_features, whole
        self.scale = spec.alpha / spec.rank
        self.down = nn.Parameter(torch.zeros(spec.rank, self.in_features))
        self.up = nn.Parameter(torch.zeros(self.out_features, spec.rank))

    def draw(self) -> None:
        """Draw one side; the other is zero, so that nothing is added."""
        nn.init.normal_(self.down, std=self.in_features**-0.5)
        nn.init.zeros_(self.up)

    @property
    def weight(self) -> Tensor:
        return self.whole.weight + self.scale * self.up @ self.down

    @property
    def bias(self) -> Tensor | None:
        return self.whole.bias

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.whole(x)
        # through the narrow side first: the product of both matrices is as large as the map
        return y + self.scale * (x @ self.down.mT) @ self.up.mT


class Lora(Mapped, kind="lora"):
    r"""LoRA: $W + \frac{\alpha}{r} B A$ with B zero at first (Hu et al. 2022, section 4.1).

    rank: r. maps: which of a part's maps, by name; the usual ones are all of attention. Multiplied out, it is a plain
    map that computes the same.
    """

    makes: ClassVar[type[LinearMap]] = AddedMap

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0
    maps: tuple[str, ...] = ("qkv", "q", "kv", "out")

    def exchanged(self, name: str, linear: Linear) -> nn.Module:
        return AddedMap(self, linear) if name.rpartition(".")[2] in self.maps else linear

    def more(self, name: str, linear: Linear) -> Cost:
        if name.rpartition(".")[2] not in self.maps:
            return Cost()
        numbers = self.rank * (linear.in_features + linear.out_features)
        return Cost(numbers, 2.0 * numbers, self.rank)


class Adapted(Part, kind="adapted"):
    r"""Adapter after a part: $y + U f(D y)$ with U zero at first (Houlsby et al. 2019, section 2.1).

    width: of the narrow layer. Applied before the part's output joins the residual stream.
    """

    part: Part
    width: PositiveInt = 64
    activation: Activation = "gelu"

    def build(self, dims: Dims) -> Module:
        module = self.part.build(dims)
        module.adapter = Adapter(self, dims)
        # the part keeps its names and everything that it can do
        module.register_forward_hook(_adapt)
        return module

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        own = linear(dims.d_model, self.width, True) + Cost(kept=self.width) + linear(self.width, dims.d_model, True)
        return self.part.cost(dims, shape) + own


class Adapter(Module):
    """Bottleneck of an `Adapted` part: down-projection, activation, up-projection."""

    def __init__(self, spec: Adapted, dims: Dims) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[spec.activation]
        self.down = nn.Parameter(torch.zeros(spec.width, dims.d_model))
        self.shift = nn.Parameter(torch.zeros(spec.width))
        self.up = nn.Parameter(torch.zeros(dims.d_model, spec.width))
        self.bias = nn.Parameter(torch.zeros(dims.d_model))

    def draw(self) -> None:
        """Draw one side; the other is zero, so that nothing is added."""
        nn.init.normal_(self.down, std=self.down.shape[1] ** -0.5)
        for x in (self.shift, self.up, self.bias):
            nn.init.zeros_(x)

    def forward(self, y_BLD: Tensor) -> Tensor:
        return y_BLD + self.activation(y_BLD @ self.down.mT + self.shift) @ self.up.mT + self.bias


def _adapt(module: Any, given: Any, said: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
    y_BLD, state = said
    return module.adapter(y_BLD), state


def is_added(name: str) -> bool:
    """Tell by its name whether a parameter belongs to LoRA or an adapter."""
    return name.endswith((".down", ".up")) or ".adapter." in name
