"""QK-norm: queries and keys normalised before they are rotated and compared (Henry et al. 2020, arXiv:2010.04245)."""

from typing import Protocol

from torch import Tensor, nn

from kinfolk.core.cost import Cost
from kinfolk.layers.module import Module
from kinfolk.layers.norms.norm import NoNorm, Norm


class Normalised(Protocol):
    """The fields of an attention that QK-norm depends on."""

    @property
    def n_heads(self) -> int:
        """Heads of queries."""

    @property
    def qk_norm(self) -> Norm:
        """The norm; "none" for an attention without."""

    @property
    def qk_norm_over(self) -> str:
        """Whether each head is normalised alone ("head") or all of them as one vector ("heads")."""


class _QKNorm(Module):
    """A norm of queries and one of keys, over the channels of each head or of all heads together."""

    def __init__(self, spec: Normalised, n_kv: int, d_head: int) -> None:
        super().__init__()
        self.all = spec.qk_norm_over == "heads"
        self.q = spec.qk_norm.build(d_head * (spec.n_heads if self.all else 1))
        self.k = spec.qk_norm.build(d_head * (n_kv if self.all else 1))

    def forward(self, q_BLHK: Tensor, k_BLGK: Tensor) -> tuple[Tensor, Tensor]:
        return self.queries(q_BLHK), self.keys(k_BLGK)

    def queries(self, q_BLHK: Tensor) -> Tensor:
        """Return normalised queries."""
        return self._normed(self.q, q_BLHK)

    def keys(self, k_BLGK: Tensor) -> Tensor:
        """Return normalised keys."""
        return self._normed(self.k, k_BLGK)

    def _normed(self, norm: nn.Module, x_BLHK: Tensor) -> Tensor:
        if self.all:
            joined: Tensor = norm(x_BLHK.flatten(2))
            return joined.unflatten(2, x_BLHK.shape[2:])
        # norms are over three axes: every position of every example is one row of heads
        each: Tensor = norm(x_BLHK.flatten(0, 1))
        return each.unflatten(0, x_BLHK.shape[:2])


def norms_of(spec: Normalised, n_kv: int, d_head: int) -> _QKNorm | None:
    """Return the norms of an attention; None where it has none."""
    return None if isinstance(spec.qk_norm, NoNorm) else _QKNorm(spec, n_kv, d_head)


def norm_cost(spec: Normalised, width: int, d_head: int) -> Cost:
    """Return the cost of normalising vectors of all heads of queries or of keys."""
    if spec.qk_norm_over == "heads":
        return spec.qk_norm.cost(width)
    one, n = spec.qk_norm.cost(d_head), width // d_head
    return Cost(params=one.params, flops=n * one.flops, kept=n * one.kept)
