"""Base `nn.Module`, linear layers and dropout, and the dimensions that a parent passes to its children."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import Tensor, nn

from kinfolk.ops.activated_linear import Activation, activated_linear
from kinfolk.ops.gated_linear import gated_linear
from kinfolk.ops.linear_map import linear_map

M = TypeVar("M", bound=nn.Module)


class Shared:
    """Modules that the layers of one stack share: made for the first that asks, owned by the stack, borrowed by all."""

    def __init__(self) -> None:
        self.modules: dict[Hashable, nn.Module] = {}

    def once(self, key: Hashable, make: Callable[[], M]) -> M:
        """Return the module under a key, making it the first time."""
        if key not in self.modules:
            self.modules[key] = make()
        return self.modules[key]  # type: ignore[return-value]

    def first(self, key: Hashable) -> bool:
        """Tell whether this key is asked for the first time: whose cost it is."""
        before = len(self.modules)
        self.once(key, nn.Identity)
        return len(self.modules) > before


def borrow(owner: nn.Module, name: str, module: nn.Module) -> None:
    """Let a module use another without owning it, so that its weights are counted, drawn and saved once."""
    object.__setattr__(owner, name, module)


@dataclasses.dataclass(frozen=True)
class Dims:
    """Dimensions of a model, said once and handed down to every part that is built."""

    d_model: int
    vocab_size: int
    max_len: int
    dropout: float
    n_sublayers: int  # residual branches of the deepest stack, for initialisations that depend on depth
    shared: Shared = dataclasses.field(default_factory=Shared, compare=False)  # of the stack that is being built
    direction: Literal["past", "both"] = "both"  # "past" inside a decoder, where nothing may see the future
    prompt: Literal["causal", "bidirectional"] = "causal"  # how a decoder reads a prefix
    n_branches: int = 1  # residual branches of all stacks together
    d_table: int = 0  # width of the table that a tied head shares, where it is not d_model; told when costs are counted


class Module(nn.Module):
    """`nn.Module` whose calls are type-checked like its `forward`."""

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class Dropout(nn.Dropout):
    """Dropout that steps aside where there is nothing to drop, as at every step of decoding."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training and self.p else x


class Linear(nn.Linear):
    """Linear layer with what initialisations depend on: how many maps it packs, and where it is.

    ends_branch: it is the last map of a residual branch. projects: it gives queries, keys or values of attention.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        *,
        bias: bool = True,
        packs: int = 1,
        ends_branch: bool = False,
        projects: bool = False,
    ) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.packs = packs
        self.ends_branch = ends_branch
        self.projects = projects

    def forward(self, x: Tensor) -> Tensor:
        """Return the map of the last axis."""
        return linear_map(x, self.weight, self.bias)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros like its weights, for a state of decoding."""
        return self.weight.new_zeros(shape)

    @property
    def in_a_row(self) -> int:
        """How many maps it adds to the depth of its branch."""
        return self.packs

    def after(self, u_BLF: Tensor, activation: Activation) -> Tensor:
        """Return the map of activated values, which are not kept."""
        return activated_linear(u_BLF, self.weight, self.bias, activation)

    def after_gate(self, u_BLf: Tensor, activation: Activation) -> Tensor:
        """Return the map of gated values, which are not kept."""
        return gated_linear(u_BLf, self.weight, self.bias, activation)


class Linears(Linear):
    """Linear layers of all experts, one under the other; each token passes through one of them."""

    def __init__(self, n: int, d_in: int, d_out: int, *, bias: bool = True, ends_branch: bool = False) -> None:
        super().__init__(d_in, n * d_out, bias=bias, packs=n, ends_branch=ends_branch)

    @property
    def in_a_row(self) -> int:
        return 1

    @property
    def weights(self) -> Tensor:
        """The matrices, [experts, out, in]."""
        return self.weight.unflatten(0, (self.packs, -1))

    @property
    def biases(self) -> Tensor | None:
        """The biases, [experts, out]."""
        return None if self.bias is None else self.bias.unflatten(0, (self.packs, -1))
