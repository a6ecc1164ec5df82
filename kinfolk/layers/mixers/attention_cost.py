"""Cost of attention scores and weighted values, in closed form: FLOPs and what the backward pass keeps."""

from typing import Protocol

from kinfolk.core.cost import Cost


class ScoredAttention(Protocol):
    """The fields of an attention that its cost depends on."""

    @property
    def n_heads(self) -> int:
        """Heads of queries."""

    @property
    def dropout(self) -> float:
        """Of weights."""


def score_cost(d_q: int, d_kv: int, spec: ScoredAttention, seen: float, scored: float) -> Cost:
    """Scores and weighted values: two products per seen key; queries, keys, values and norms are kept.

    Where the fused kernel cannot be used, so are the weights of all `scored` keys, what dropout leaves of them, and
    queries, keys and values in the order of the products.
    """
    explicit = spec.n_heads * scored * (2 if spec.dropout else 1) + (3 * d_q if scored else 0)
    return Cost(flops=4.0 * d_q * seen, kept=d_q + 2 * d_kv + spec.n_heads + explicit)
