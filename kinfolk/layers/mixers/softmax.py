"""Axis Softmax: how attention scores become weights: the plain softmax, capped scores (Gemma 2), attention sinks."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveFloat
from kinfolk.core.cost import Cost
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Module
from kinfolk.ops.attention.scores import Change, Scoring


class SoftmaxModule(Module):
    """Plain softmax; base of the others."""

    def weigh(self, scoring: Scoring) -> Scoring:
        """Return how pairs are scored and normalised."""
        return scoring


class Softmax(Spec):
    """Axis: from attention scores to weights. `explicit`: fused kernels cannot compute it."""

    explicit: ClassVar[bool] = False

    def build(self, n_heads: int) -> SoftmaxModule:
        """Return the module."""
        return SoftmaxModule()

    def cost(self, n_heads: int, scored: float) -> Cost:
        """Return its cost per token that scores this many keys, beside that of a plain softmax."""
        return Cost()


class PlainSoftmax(Softmax, kind="softmax"):
    """Softmax: exponentials divided by their sum (Vaswani et al. 2017, equation 1)."""


class Softcap(Softmax, kind="softcap"):
    r"""Softcap: a softmax of $c \tanh(s / c)$, scores stay between -c and c (Gemma Team 2024, section 2)."""

    explicit: ClassVar[bool] = True
    cap: PositiveFloat = 50.0

    def build(self, n_heads: int) -> SoftmaxModule:
        return _Softcap(self.cap)

    def cost(self, n_heads: int, scored: float) -> Cost:
        # the tangent is kept
        return Cost(flops=3.0 * n_heads * scored, kept=n_heads * scored)


class _Softcap(SoftmaxModule):
    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def weigh(self, scoring: Scoring) -> Scoring:
        return dataclasses.replace(scoring, before=self._after(scoring.before))

    def _after(self, first: Change | None) -> Change:
        def change(scores_BHLM: Tensor) -> Tensor:
            scores_BHLM = scores_BHLM if first is None else first(scores_BHLM)
            return torch.tanh(scores_BHLM / self.cap) * self.cap

        return change


class Sink(Softmax, kind="sink"):
    r"""Attention sink: $e^{s_j} / (e^{b_h} + \sum_j e^{s_j})$, one learned logit per head takes a share.

    OpenAI 2025, gpt-oss-120b & gpt-oss-20b Model Card, section 2.2; Xiao et al. 2023 found that heads make
    the first token such a sink. Logits are 0 at first: "softmax off by one" (Miller 2023).
    """

    explicit: ClassVar[bool] = True

    def build(self, n_heads: int) -> SoftmaxModule:
        return _Sink(n_heads)

    def cost(self, n_heads: int, scored: float) -> Cost:
        # the softmax before the sink takes its share, the normaliser and the share
        return Cost(params=n_heads, flops=2.0 * n_heads * scored, kept=n_heads * (scored + 2))


class _Sink(SoftmaxModule):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.sink_H = nn.Parameter(torch.zeros(n_heads))

    def weigh(self, scoring: Scoring) -> Scoring:
        return dataclasses.replace(scoring, sink_H=self.sink_H)
