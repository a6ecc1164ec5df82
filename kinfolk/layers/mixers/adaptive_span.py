"""Axis Span: adaptive attention span, learned for each head or each token (Sukhbaatar et al. 2019).

The pattern says what may be seen at all; a span lets weights fade out before that. In each pass the executor is given
the pattern only as far as the furthest-looking head sees at present, so attention becomes cheaper as spans shrink.
"""

import functools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import FiniteFloat, NonNegativeFloat, NonNegativeInt, PositiveInt
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, linear
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Module
from kinfolk.layers.positions.position import Hooks
from kinfolk.ops.adaptive_span import fade
from kinfolk.ops.attention.scores import View
from kinfolk.ops.patterns.leaves import Causal, Pattern, PerHead, Window

STEP = 64
"""Spans are rounded up to a multiple of this before anything is planned, so that plans are few."""


class Look(NamedTuple):
    """Attention pattern of a layer in one pass, and a hook that fades its scores, given where queries start."""

    pattern: Pattern
    fade: Callable[..., Tensor] | None = None


class SpanModule(Module):
    """No span: heads attend as far as the pattern lets them."""

    def look(self, pattern: Pattern, x_BLD: Tensor, ctx: Context) -> Look:
        """Return the pattern of these tokens, and how scores fade."""
        return Look(pattern)

    def bounded(self, pattern: Pattern) -> Pattern:
        """Return the pattern within the longest span that the weights allow: what decoding keeps in its cache."""
        return pattern


class Span(Spec):
    """Axis: how far back each head attends. `explicit`: attention has to compute its scores."""

    explicit: ClassVar[bool] = False

    def build(self, dims: Dims, n_heads: int) -> SpanModule:
        """Return the module."""
        return SpanModule()

    def cost(self, dims: Dims, n_heads: int, scored: float) -> Cost:
        """Return its cost per token that scores `scored` keys."""
        return Cost()

    def bounded(self, pattern: Pattern, dims: Dims) -> Pattern:
        """Return the pattern as far as any span may grow."""
        return pattern


class Unlimited(Span, kind="unlimited"):
    """No span: heads attend as far as the pattern goes."""


class Fading(Span):
    r"""Axis: adaptive attention spans. At distance x weights are multiplied by $\mathrm{clamp}((R + z - x) / R, 0, 1)$.

    $z$ lies between 0 and `max_span` (0: max_len), $R$ is `ramp`; a token sees itself and the `max_span` - 1 before it
    at most. `penalty` times the mean of $z$ over heads (and tokens) is added to the loss for each layer, as in
    the released code; the paper divides by the heads of all layers.
    """

    explicit: ClassVar[bool] = True

    max_span: NonNegativeInt = 0
    ramp: PositiveInt = 32
    penalty: NonNegativeFloat = 5e-7

    def cost(self, dims: Dims, n_heads: int, scored: float) -> Cost:
        return Cost(flops=3.0 * n_heads * scored)

    def bounded(self, pattern: Pattern, dims: Dims) -> Pattern:
        return within(pattern, self.max_span or dims.max_len)


class AdaptiveSpan(Fading, kind="adaptive"):
    """Adaptive span, one per head (Sukhbaatar et al. 2019); it starts at 0, where only the ramp is."""

    def build(self, dims: Dims, n_heads: int) -> SpanModule:
        return _AdaptiveSpan(self, dims, n_heads)

    def cost(self, dims: Dims, n_heads: int, scored: float) -> Cost:
        return Cost(params=n_heads) + super().cost(dims, n_heads, scored)


class DynamicSpan(Fading, kind="dynamic"):
    r"""Dynamic span of each head and token, $z_t = S\,\sigma(v \cdot x_t + b + b_0)$ (Sukhbaatar et al. 2019).

    $v$ and $b$ are 0 at first, so that every span begins as $S\,\sigma(b_0)$, $b_0$ being `start`. Drawn at random,
    the longest of many spans would reach over nearly everything before anything is learnt.
    """

    start: FiniteFloat = -4.0

    def build(self, dims: Dims, n_heads: int) -> SpanModule:
        return _DynamicSpan(self, dims, n_heads)

    def cost(self, dims: Dims, n_heads: int, scored: float) -> Cost:
        # what the map is given is kept by that of the queries
        own = linear(dims.d_model, n_heads, bias=True, kept=False) + Cost(kept=2 * n_heads)
        return own + super().cost(dims, n_heads, scored)


class _Fading(SpanModule):
    def __init__(self, spec: Fading, dims: Dims) -> None:
        super().__init__()
        self.spec, self.max_span = spec, spec.max_span or dims.max_len

    def look(self, pattern: Pattern, x_BLD: Tensor, ctx: Context) -> Look:
        reach_BHL = self.reach(x_BLD)
        if self.training:
            ctx.add_loss("span", self.spec.penalty * self._mean(reach_BHL, ctx))
        if ctx.hears("span"):
            ctx.tap("span", reach_BHL.detach())
        # reading a number makes an accelerator wait, and one token gains nothing from it
        wait = x_BLD.device.type != "cpu" or x_BLD.shape[1] == 1
        seen = self.max_span if wait else -(-self.seen(reach_BHL) // STEP) * STEP
        return Look(within(pattern, min(seen, self.max_span)), functools.partial(self._fade, reach_BHL))

    def reach(self, x_BLD: Tensor) -> Tensor:
        """Return the spans of heads and tokens: [B or 1, H, L or 1]."""
        raise NotImplementedError

    def seen(self, reach: Tensor) -> int:
        """Return how many positions the longest of some spans sees, its ramp included."""
        if torch.compiler.is_exporting():
            return self.max_span  # a graph has no numbers; what is too far fades all the same
        # a key at distance R + z has the weight 0, those nearer are seen; in this order, what is not a number sees
        # everything
        return math.ceil(min(float(self.max_span), self.spec.ramp + float(reach.detach().amax())))

    def _mean(self, reach_BHL: Tensor, ctx: Context) -> Tensor:
        if ctx.padding is None or reach_BHL.shape[2] == 1:
            return reach_BHL.mean()
        keep_B1L = ctx.padding.keep_BL.unsqueeze(1)
        return (reach_BHL * keep_B1L).sum() / (keep_B1L.sum() * reach_BHL.shape[1]).clamp(min=1)

    def _fade(
        self, reach_BHL: Tensor, start: int, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, heads: slice
    ) -> Tensor:
        reach = reach_BHL[:, heads]
        if q.ndim > 4 or q.shape[-2] < reach.shape[2]:
            # queries are cut apart only where the one at `start` + i is the i-th
            at = q_pos[0] - start
            reach = reach[:, :, at] if reach.shape[2] > 1 else reach.view(*reach.shape[:2], *[1] * at.ndim)
        return fade(q_pos, k_pos, reach.unsqueeze(-1), self.spec.ramp).to(q.dtype)


class _AdaptiveSpan(_Fading):
    def __init__(self, spec: AdaptiveSpan, dims: Dims, n_heads: int) -> None:
        super().__init__(spec, dims)
        # of max_span
        self.share_H = nn.Parameter(torch.zeros(n_heads))

    @torch.no_grad()
    def at_step(self, step: int) -> None:
        """Bring back what the last step of the optimiser took out of [0, 1]; left there it would get no gradient.

        Between passes, because a pass may have a copy of the parameter only: FSDP gathers it anew for the backward.
        """
        self.share_H.clamp_(0, 1)

    def bounded(self, pattern: Pattern) -> Pattern:
        return within(pattern, self.seen(self.reach(self.share_H)))

    def reach(self, x_BLD: Tensor) -> Tensor:
        return self.spans()[:, None][None]

    def spans(self) -> Tensor:
        """Return the span of each head in positions, the ramp not included."""
        return self.max_span * _precise(self.share_H).clamp(0, 1)


class _DynamicSpan(_Fading):
    def __init__(self, spec: DynamicSpan, dims: Dims, n_heads: int) -> None:
        super().__init__(spec, dims)
        self.start = spec.start
        self.share = _Alike(dims.d_model, n_heads)

    def bounded(self, pattern: Pattern) -> Pattern:
        return within(pattern, self.max_span)

    def reach(self, x_BLD: Tensor) -> Tensor:
        return self.max_span * torch.sigmoid(_precise(self.share(x_BLD)) + self.start).transpose(1, 2)


class _Alike(Module):
    """Linear layer that is zero at first."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(d_out, d_in)), nn.Parameter(torch.zeros(d_out))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def within(pattern: Pattern, n: int) -> Pattern:
    """Return the pairs of a pattern that are less than `n` apart."""
    if isinstance(pattern, PerHead):
        return PerHead(patterns=tuple(within(one, n) for one in pattern.patterns))
    # the query is one of the n positions
    if isinstance(pattern, Causal):
        return Window(left=n - 1)
    return pattern & Window(left=n - 1, right=0 if pattern.causal else n - 1)


def _precise(x: Tensor) -> Tensor:
    """Return numbers that can be told apart once they are distances."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def learned_spans(model: nn.Module) -> dict[str, Tensor]:
    """Return the learned spans of a model's heads in positions, by the path of their module."""
    return {path: m.spans().detach() for path, m in model.named_modules() if isinstance(m, _AdaptiveSpan)}


def faded(hooks: Hooks, look: Look, view: View) -> Hooks:
    """Add what a span does to the scores to what a position does."""
    if look.fade is None:
        return hooks
    where, fading = hooks.bias, functools.partial(look.fade, view.start)
    return hooks._replace(bias=fading if where is None else lambda *tile: where(*tile) + fading(*tile))
