"""Attention patterns: contract, and their algebra under & and |.

A pattern answers three questions. `allows(q, k)`: may position q attend to position k? It is the definition.
`touches(box)`: could any pair of a box of positions be allowed? It is interval arithmetic, may err only towards
yes, and lets the executor plan 65,536 positions without ever making a matrix of that side. `fills(box)`: are all of
them allowed? It may err only towards no, and spares the executor a mask. The leaves are in `ops/patterns/leaves.py`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec


class Box(NamedTuple):
    """Closed intervals of query and key positions; the four tensors broadcast."""

    q_low: Tensor
    q_high: Tensor
    k_low: Tensor
    k_high: Tensor


class Pattern(Spec):
    """Axis: attention patterns: which query may attend to which key. They combine with `&` and `|`."""

    @property
    def causal(self) -> bool:
        """True if no query ever sees a later key."""
        return False

    @property
    def stationary(self) -> bool:
        """True if only the distance `q - k` matters."""
        return False

    @property
    def span(self) -> int | None:
        """How many positions back, the query's own included, can ever be seen; None without a bound."""
        return None

    def first_seen(self, q: int) -> int:
        """Return a position before which no query at `q` or later ever looks: what may be forgotten."""
        return 0 if self.span is None else max(0, q - self.span + 1)

    @property
    def grain(self) -> int:
        """How many neighbouring keys tend to be allowed together; the executor gathers keys in blocks no larger."""
        return 1 << 20

    @property
    def q_grain(self) -> int:
        """How many neighbouring queries tend to see the same keys; the executor takes queries in blocks no larger."""
        return 1 << 20

    @property
    def fold(self) -> int:
        """A number that divides every allowed distance: keys a stride apart lie together once positions are folded."""
        return 1

    def sheets(self) -> "tuple[Pattern, ...]":
        """Return patterns without a common pair whose union this is, each well served by one fold."""
        return (self,)

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        """Return a boolean tensor of the broadcast shape of `q` and `k`."""
        raise NotImplementedError

    def touches(self, box: Box) -> Tensor:
        """Return false only where no pair of the box is allowed."""
        return torch.ones_like(box.q_low + box.k_low, dtype=torch.bool)

    def fills(self, box: Box) -> Tensor:
        """Return true only where every pair of the box is allowed."""
        return torch.zeros_like(box.q_low + box.k_low, dtype=torch.bool)

    def by_head(self, n_heads: int) -> tuple[tuple["Pattern", slice], ...]:
        """Return which pattern each run of heads uses: one for all, unless the pattern says otherwise."""
        return ((self, slice(0, n_heads)),)

    def __and__(self, other: "Pattern") -> "Pattern":
        return Both(a=self, b=other)

    def __or__(self, other: "Pattern") -> "Pattern":
        return Either(a=self, b=other)


class _OfTwo(Pattern):
    """Base of patterns that are composed of two."""

    a: Pattern
    b: Pattern

    @property
    def stationary(self) -> bool:
        return self.a.stationary and self.b.stationary

    @property
    def grain(self) -> int:
        return min(self.a.grain, self.b.grain)

    @property
    def q_grain(self) -> int:
        return min(self.a.q_grain, self.b.q_grain)


class Both(_OfTwo, kind="and"):
    """Pairs allowed by both patterns."""

    @property
    def causal(self) -> bool:
        return self.a.causal or self.b.causal

    @property
    def span(self) -> int | None:
        return min((s for s in (self.a.span, self.b.span) if s is not None), default=None)

    def first_seen(self, q: int) -> int:
        return max(self.a.first_seen(q), self.b.first_seen(q))

    @property
    def fold(self) -> int:
        # an allowed distance is a multiple of both
        return math.lcm(self.a.fold, self.b.fold)

    def sheets(self) -> tuple[Pattern, ...]:
        ours, theirs = self.a.sheets(), self.b.sheets()
        return (self,) if len(ours) == len(theirs) == 1 else tuple(p & r for p in ours for r in theirs)

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return self.a.allows(q, k) & self.b.allows(q, k)

    def touches(self, box: Box) -> Tensor:
        return self.a.touches(box) & self.b.touches(box)

    def fills(self, box: Box) -> Tensor:
        return self.a.fills(box) & self.b.fills(box)


class Either(_OfTwo, kind="or"):
    """Pairs allowed by either pattern. The softmax runs once over the union."""

    @property
    def causal(self) -> bool:
        return self.a.causal and self.b.causal

    @property
    def span(self) -> int | None:
        spans = (self.a.span, self.b.span)
        return None if None in spans else max(s for s in spans if s is not None)

    def first_seen(self, q: int) -> int:
        return min(self.a.first_seen(q), self.b.first_seen(q))

    @property
    def fold(self) -> int:
        return math.gcd(self.a.fold, self.b.fold)

    def sheets(self) -> tuple[Pattern, ...]:
        ours, theirs = self.a.sheets(), self.b.sheets()
        if {p.fold for p in (*ours, *theirs)} == {self.fold}:
            return (self,)
        # a pair on two sheets would count twice in the softmax
        return (*ours, *(Except(a=p, b=self.a) for p in theirs))

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return self.a.allows(q, k) | self.b.allows(q, k)

    def touches(self, box: Box) -> Tensor:
        return self.a.touches(box) | self.b.touches(box)

    def fills(self, box: Box) -> Tensor:
        return self.a.fills(box) | self.b.fills(box)


class Except(_OfTwo, kind="except"):
    """Pairs allowed by `a` but not by `b`."""

    @property
    def causal(self) -> bool:
        return self.a.causal

    @property
    def span(self) -> int | None:
        return self.a.span

    @property
    def grain(self) -> int:
        return self.a.grain

    @property
    def q_grain(self) -> int:
        return self.a.q_grain

    @property
    def fold(self) -> int:
        return self.a.fold

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        return self.a.allows(q, k) & ~self.b.allows(q, k)

    def touches(self, box: Box) -> Tensor:
        # only a box that b fills is certainly empty, and only one that b does not touch is untouched
        return self.a.touches(box) & ~self.b.fills(box)

    def fills(self, box: Box) -> Tensor:
        return self.a.fills(box) & ~self.b.touches(box)


class PerHead(Pattern, kind="per-head"):
    """Another pattern for each head, or for each equal run of heads (Child et al. 2019, section 5.1)."""

    patterns: tuple[Pattern, ...]

    @property
    def causal(self) -> bool:
        return all(p.causal for p in self.patterns)

    @property
    def span(self) -> int | None:
        spans = [p.span for p in self.patterns]
        return None if None in spans else max(s for s in spans if s is not None)

    def allows(self, q: Tensor, k: Tensor) -> Tensor:
        raise SpecError("per-head: one pattern per head, so it cannot be inside another pattern")

    def by_head(self, n_heads: int) -> tuple[tuple[Pattern, slice], ...]:
        if not self.patterns or n_heads % len(self.patterns):
            raise SpecError(f"per-head: {len(self.patterns)} patterns do not divide {n_heads} heads")
        run = n_heads // len(self.patterns)
        return tuple((p, slice(i * run, (i + 1) * run)) for i, p in enumerate(self.patterns))
