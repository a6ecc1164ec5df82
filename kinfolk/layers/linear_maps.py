"""Replacements of linear layers: low-rank factors, int8 quantization and movement pruning.

A part of this kind is built as it is, and then its maps are exchanged. Everything else about it stays: what it
computes around them, its state while decoding, what it reports.
"""

import dataclasses
import warnings
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.cost import Cost, Shape
from kinfolk.core.device import shapes_only
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Linear, Module, Shared
from kinfolk.layers.part import Part, PartModule
from kinfolk.ops.activated_linear import Activation, activate, activated_linear
from kinfolk.ops.gated_linear import gated_linear

LEVELS = 127
"""Largest int8 value, on either side of zero."""
ENGINE = "fbgemm"


class LinearMap(Module):
    """Base of replacements of a linear layer; its matrix is that of the layer it replaces."""

    in_features: int
    out_features: int

    @property
    def weight(self) -> Tensor:
        """The matrix [out, in]."""
        raise NotImplementedError

    @property
    def bias(self) -> Tensor | None:
        """What is added."""
        raise NotImplementedError

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros like its weights."""
        return self.weight.new_zeros(shape)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def after(self, u_BLF: Tensor, activation: Activation) -> Tensor:
        """Return the map of activated values."""
        return activated_linear(u_BLF, self.weight, self.bias, activation)

    def after_gate(self, u_BLf: Tensor, activation: Activation) -> Tensor:
        """Return the map of gated values."""
        return gated_linear(u_BLf, self.weight, self.bias, activation)


class Mapped(Part):
    """Axis: LoRA, adapters, int8, low-rank and pruned linear maps, around any part. Around one of these, it replaces
    the maps that are still plain.
    """

    makes: ClassVar[type[LinearMap]] = LinearMap

    part: Part

    def build(self, dims: Dims) -> PartModule:
        module: Any = self.part.build(dims)
        exchange(module, {name: self.exchanged(name, linear) for name, linear in linears(module)})
        return module

    def exchanged(self, name: str, linear: Linear) -> nn.Module:
        """Return what takes the place of a map."""
        raise NotImplementedError

    def more(self, name: str, linear: Linear) -> Cost:
        """Return what it costs beyond the map it takes the place of, which may be less than nothing."""
        raise NotImplementedError

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        with shapes_only():
            # what the layers of a stack share is not this copy's
            module = self.part.build(dataclasses.replace(dims, shared=Shared()))
        total = self.part.cost(dims, shape)
        for name, linear in linears(module):
            total += self.more(name, linear)
        return total


def bare(part: Part) -> Part:
    """Return a part with plain maps."""
    return bare(part.part) if isinstance(part, Mapped) else part


def linears(module: nn.Module) -> list[tuple[str, Linear]]:
    """Return the plain maps of a part, by name; those of experts, of which a token passes one, are none."""
    return [(name, m) for name, m in module.named_modules() if type(m) is Linear]


def exchange(module: nn.Module, others: dict[str, nn.Module]) -> None:
    """Put modules in the place of others of the same name."""
    for path, other in others.items():
        above, _, name = path.rpartition(".")
        setattr(module.get_submodule(above), name, other)


class Rank(Spec):
    """Rank of the two factors that replace one map."""

    map: str
    rank: PositiveInt


class TwoMaps(LinearMap):
    """Low-rank linear layer: a map to `rank` numbers and one from them."""

    def __init__(self, linear: Linear, rank: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.inner = Linear(linear.in_features, rank, bias=False)
        has_bias, packs = linear.bias is not None, linear.packs
        self.outer = Linear(rank, linear.out_features, bias=has_bias, packs=packs, ends_branch=linear.ends_branch)

    @property
    def weight(self) -> Tensor:
        return self.outer.weight @ self.inner.weight

    @property
    def bias(self) -> Tensor | None:
        return self.outer.bias

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.outer(self.inner(x))
        return y

    def after(self, u_BLF: Tensor, activation: Activation) -> Tensor:
        y: Tensor = self.outer(self.inner.after(u_BLF, activation))
        return y

    def after_gate(self, u_BLf: Tensor, activation: Activation) -> Tensor:
        y: Tensor = self.outer(self.inner.after_gate(u_BLf, activation))
        return y


class LowRank(Mapped, kind="low-rank"):
    r"""Low-rank factorisation: $W \approx A B$ with `rank` numbers between. A map that is not in `ranks` stays whole.

    It has fewer weights than one map where the rank is below $mn / (m + n)$.
    """

    makes: ClassVar[type[LinearMap]] = TwoMaps

    ranks: tuple[Rank, ...]

    def __post_init__(self) -> None:
        if isinstance(self.part, Mapped):
            raise SpecError(f"part: is of kind {self.part.kind!r}; factorise plain maps, then exchange the factors")

    def exchanged(self, name: str, linear: Linear) -> nn.Module:
        rank = self._ranks().get(name)
        return linear if rank is None else TwoMaps(linear, rank)

    def more(self, name: str, linear: Linear) -> Cost:
        rank = self._ranks().get(name)
        if rank is None:
            return Cost()
        d_in, d_out = linear.in_features, linear.out_features
        saved = rank * (d_in + d_out) - d_in * d_out
        return Cost(saved, 2.0 * saved, rank)

    def build(self, dims: Dims) -> PartModule:
        module = super().build(dims)
        known = [name for name, m in module.named_modules() if isinstance(m, TwoMaps)]
        for one in self.ranks:
            if one.map not in known:
                raise SpecError(f"ranks: {self.part.kind!r} has no map {one.map!r}{suggest(one.map, known)}")
        return module

    def _ranks(self) -> dict[str, int]:
        return {one.map: one.rank for one in self.ranks}


class WholeMap(LinearMap):
    """Linear layer in int8: integers times a step for each output."""

    def __init__(self, linear: Linear, activations: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.whole = nn.Parameter(torch.zeros(linear.weight.shape, dtype=torch.int8), requires_grad=False)
        self.step = nn.Parameter(torch.ones(self.out_features))
        self.offset = None if linear.bias is None else nn.Parameter(torch.zeros(self.out_features))
        self.fast = activations and ENGINE in torch.backends.quantized.supported_engines
        self._packed: tuple[Any, Any] = (None, None)
        self._float: tuple[Any, Any] = (None, None)

    @property
    def held(self) -> int:
        """Bytes of the copies that it works with: what the kernel wants, or the matrix in floating point."""
        floating = self._float[1]
        packed = 0 if self._packed[1] is None else self.whole.numel()
        return packed + (0 if floating is None else floating.numel() * floating.element_size())

    def draw(self) -> None:
        """Draw it; training does not begin with integers, but every model can be drawn."""
        whole, step = quantise(torch.randn(self.out_features, self.in_features) * 0.02)
        self.whole.data, self.step.data = whole, step.to(self.step)
        if self.offset is not None:
            nn.init.zeros_(self.offset)

    @property
    def weight(self) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._floating()
        if self._float[0] != (seen := self._seen()):
            self._float = seen, self._floating()
        found: Tensor = self._float[1]
        return found

    @property
    def bias(self) -> Tensor | None:
        return self.offset

    def forward(self, x: Tensor) -> Tensor:
        return self._quick(x) if self._is_quick(x) else super().forward(x)

    def after(self, u_BLF: Tensor, activation: Activation) -> Tensor:
        if self._is_quick(u_BLF):
            return self._quick(activate(u_BLF, activation))
        return super().after(u_BLF, activation)

    def after_gate(self, u_BLf: Tensor, activation: Activation) -> Tensor:
        if self._is_quick(u_BLf):
            inner, plain = u_BLf.chunk(2, -1)
            return self._quick(activate(inner, activation) * plain)
        return super().after_gate(u_BLf, activation)

    def _is_quick(self, x: Tensor) -> bool:
        plain = x.device.type == "cpu" and x.dtype == torch.float32
        return self.fast and plain and not torch.is_grad_enabled() and not torch.compiler.is_compiling()

    def _quick(self, x: Tensor) -> Tensor:
        # 8 bits would overflow in the products of processors without instructions for them
        y: Tensor = torch.ops.quantized.linear_dynamic(x.contiguous(), self._pack(), True)
        return y

    def _pack(self) -> Any:
        """Return the matrix as the kernel wants it."""
        if self._packed[0] != (seen := self._seen()):
            self._packed = seen, _packed(self.whole, self.step, self.offset)
        return self._packed[1]

    def _floating(self) -> Tensor:
        return self.whole.to(self.step.dtype) * self.step[:, None]

    def _seen(self) -> Any:
        """Return what changes when a number does, so that copies are refreshed."""
        own = [x for x in (self.whole, self.step, self.offset) if x is not None]
        # tensors of inference mode count no versions
        return tuple((x.data_ptr(), x.dtype, 0 if x.is_inference() else x._version) for x in own)

    def __getstate__(self) -> dict[str, Any]:
        # copies to work with are made anew in a copy
        return self.__dict__ | {"_packed": (None, None), "_float": (None, None)}


class Int8(Mapped, kind="int8"):
    r"""Int8 quantization of weights: $W_c \approx s_c\,q_c$, $q \in [-127, 127]$, one step $s_c$ for each output.

    `activations` "float": $y = x\,(s\,q)^\top + b$. "int8": where no gradient is asked for and the processor has the
    kernel (x86), what goes in becomes integers too, by one step and one zero for all of it, of 7 bits, so that
    sums of two products fit 16: $y = s_x s\,(q_x - z)\,q^\top + b$. What a row gives then depends a little on the rows
    beside it. Elsewhere, and while learning, it is as with "float". Steps and biases can be learnt, integers not.
    """

    makes: ClassVar[type[LinearMap]] = WholeMap

    activations: Literal["int8", "float"] = "int8"

    def exchanged(self, name: str, linear: Linear) -> nn.Module:
        return WholeMap(linear, self.activations == "int8")

    def more(self, name: str, linear: Linear) -> Cost:
        return Cost(linear.out_features)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers and a step for each row; no weight is off by more than half a step."""
    # a row of zeros has a step above 0, so that 0 / step is 0 and not NaN
    step = weight.abs().amax(1).clamp(min=torch.finfo(weight.dtype).tiny) / LEVELS
    return (weight / step[:, None]).round().clamp(-LEVELS, LEVELS).to(torch.int8), step


def _packed(whole: Tensor, step: Tensor, bias: Tensor | None) -> Any:
    engine = torch.backends.quantized.engine
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.backends.quantized.engine = ENGINE
            zeros = torch.zeros(len(step), dtype=torch.long)
            numbers = torch._make_per_channel_quantized_tensor(whole.data, step.data.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(numbers, None if bias is None else bias.data.float())
        finally:
            torch.backends.quantized.engine = engine
