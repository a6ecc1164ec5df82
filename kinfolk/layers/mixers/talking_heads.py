"""Axis Talk: talking-heads attention, linear maps across heads around the softmax (Shazeer et al. 2020)."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from kinfolk.core.cost import Cost
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Module
from kinfolk.ops.attention.scores import Scoring
from kinfolk.ops.patterns.leaves import Pattern
from kinfolk.ops.talking_heads import mix_heads


class TalkModule(Module):
    """No talking heads: every head attends alone."""

    def among_heads(self, scoring: Scoring) -> Scoring:
        """Return how pairs are scored once heads have talked."""
        return scoring


class Talk(Spec):
    """Axis: what passes between heads (talking heads). `explicit`: attention has to compute its scores."""

    explicit: ClassVar[bool] = False

    def build(self, n_heads: int, pattern: Pattern) -> TalkModule:
        """Return the module."""
        return TalkModule()

    def cost(self, n_heads: int, scored: float) -> Cost:
        """Return its cost per token that scores `scored` keys."""
        return Cost()


class Silent(Talk, kind="silent"):
    """No talking heads: every head attends alone."""


class Talking(Talk, kind="talking"):
    r"""Talking-heads attention: linear maps across heads, before and after the softmax (Shazeer et al. 2020).

    $o^h = \sum_g P_{hg}\,\mathrm{softmax}(\sum_f S_{gf}\, q^f \cdot k^f)\, v^h$: $S$ mixes products before the softmax
    (positions and masks come after it, as in the released code), $P$ mixes weights after it. Both start as the
    identity, which is ordinary attention.
    """

    explicit: ClassVar[bool] = True

    def build(self, n_heads: int, pattern: Pattern) -> TalkModule:
        if len(pattern.by_head(n_heads)) > 1:
            raise SpecError("talk: heads that talk look at the same pairs, so they cannot have one pattern per head")
        return _Talking(n_heads)

    def cost(self, n_heads: int, scored: float) -> Cost:
        # each map keeps what it is given
        return Cost(params=2 * n_heads**2, flops=4.0 * n_heads**2 * scored, kept=2 * n_heads * scored)


class _Talking(TalkModule):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.scores_HH, self.weights_HH = (nn.Parameter(torch.empty(n_heads, n_heads)) for _ in range(2))
        self.draw()

    def draw(self) -> None:
        """Start in silence."""
        for map_HH in (self.scores_HH, self.weights_HH):
            nn.init.eye_(map_HH)

    def among_heads(self, scoring: Scoring) -> Scoring:
        return dataclasses.replace(scoring, before=self._before, after=self._after)

    def _before(self, scores_BHLM: Tensor) -> Tensor:
        return mix_heads(self.scores_HH, scores_BHLM)

    def _after(self, weights_BHLM: Tensor) -> Tensor:
        return mix_heads(self.weights_HH, weights_BHLM)
