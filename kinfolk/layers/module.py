"""What every layer shares: the base module, and the numbers that a parent hands down when it builds its children."""

import dataclasses
from typing import TYPE_CHECKING, Any

from torch import nn


@dataclasses.dataclass(frozen=True)
class Dims:
    """Said once on the model, handed down: no child repeats them."""

    d_model: int
    vocab_size: int
    max_len: int
    dropout: float
    n_sublayers: int  # residual branches of the deepest stack, for initialisations that depend on depth


class Module(nn.Module):
    """`nn.Module` whose calls are type-checked like its `forward`."""

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class Linear(nn.Linear):
    """A linear map that knows what initialisations ask: how many maps it packs, and whether it ends a branch."""

    def __init__(self, d_in: int, d_out: int, *, bias: bool = True, packs: int = 1, ends_branch: bool = False) -> None:
        super().__init__(d_in, d_out, bias=bias)
        self.packs = packs
        self.ends_branch = ends_branch
