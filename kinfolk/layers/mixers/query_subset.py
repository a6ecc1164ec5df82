"""Attention by some of the tokens to all of them: keys and values are made once, queries come for a few."""

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.context import Context, Padding
from kinfolk.layers.mixers.adaptive_span import faded
from kinfolk.layers.mixers.attention import _scoring, _SelfAttention, _view
from kinfolk.layers.module import Module
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import View


@dataclasses.dataclass(frozen=True, eq=False)
class Some:
    """Some tokens of every row, in their order: where they stand in it, and which of them are meant.

    Rows differ in how many they have; those with fewer have others at the end, which do no harm.
    """

    at_BA: Tensor
    meant_BA: Tensor

    @classmethod
    def of(cls, chosen_BL: Tensor, n: int) -> "Some":
        """Pick up to `n` chosen tokens of every row."""
        at_BA = (~chosen_BL).to(torch.uint8).sort(dim=1, stable=True).indices[:, :n]
        return cls(at_BA, chosen_BL.gather(1, at_BA))

    def take(self, x_BLD: Tensor) -> Tensor:
        """Return what stands there."""
        return x_BLD.gather(1, self.at_BA[..., None].expand(-1, -1, x_BLD.shape[-1]))

    def put(self, y_BAD: Tensor, x_BLD: Tensor) -> Tensor:
        """Return x with y in the place of those that are meant."""
        at_BAD = self.at_BA[..., None].expand_as(y_BAD)
        return x_BLD.scatter(1, at_BAD, torch.where(self.meant_BA[..., None], y_BAD, x_BLD.gather(1, at_BAD)))

    def context(self, ctx: Context, length: int) -> Context:
        """Return the context of these tokens, of a row of `length`."""
        pos_BL = ctx.positions(length, self.at_BA.device).expand(len(self.at_BA), length)
        n_others = length - self.at_BA.shape[1]
        return ctx.replace(
            start=ctx.start + n_others,
            pos_BL=pos_BL.gather(1, self.at_BA),
            padding=Padding(self.meant_BA, right=True),
            group_BL=None if ctx.group_BL is None else ctx.group_BL.gather(1, self.at_BA),
        )


class Standing:
    """The keys and values of all tokens, and where the queries of all would stand."""

    def __init__(self, k_BGMK: Tensor, v_BGMK: Tensor, view: View) -> None:
        self.k_BGMK, self.v_BGMK, self.view = k_BGMK, v_BGMK, view

    def seen_by(self, some: Some) -> View:
        """Return where the queries of some stand."""
        view, at_BA = self.view, some.at_BA
        pos_BA = view.start + at_BA if view.q_pos_BL is None else _rows(view.q_pos_BL, at_BA)
        group_BA = None if view.q_group_BL is None else _rows(view.q_group_BL, at_BA)
        return dataclasses.replace(view, q_pos_BL=pos_BA, q_group_BL=group_BA)


class Stand(Module):
    """In the place of an attention inside its residual: makes keys and values, and looks at nothing."""

    def __init__(self, part: _SelfAttention) -> None:
        super().__init__()
        self.part = part

    def forward(self, x_BLD: Tensor, ctx: Context, state: Any) -> tuple[Tensor, Standing]:
        part, d_q = self.part, self.part.heads[0] * self.part.d_head
        k_BGLK, v_BGLK = _mapped(part, x_BLD, slice(d_q, None)).split_with_sizes(part.heads[1:], dim=1)
        _, k_BGLK = part.position.turn(k_BGLK, k_BGLK, ctx)
        if state is None:
            pattern = part.span.look(part.spec.pattern, x_BLD, ctx).pattern
            return x_BLD, Standing(k_BGLK, v_BGLK, _view(ctx, pattern))
        return x_BLD, Standing(*state.extend(k_BGLK, v_BGLK, ctx))


class Ask(Module):
    """In the place of an attention inside its residual: some look at what stands."""

    def __init__(self, part: _SelfAttention, some: Some) -> None:
        super().__init__()
        self.part, self.some = part, some

    def forward(self, x_BAD: Tensor, ctx: Context, state: Standing) -> tuple[Tensor, Standing]:
        part, spec = self.part, self.part.spec
        q_BHAK = _mapped(part, x_BAD, slice(part.heads[0] * part.d_head))
        q_BHAK, _ = part.position.turn(q_BHAK, q_BHAK, ctx)
        look, view = part.span.look(spec.pattern, x_BAD, ctx), state.seen_by(self.some)
        hooks = part.position.hooks(ctx, ctx.start + x_BAD.shape[1], part.causal)
        scoring = _scoring(part, ctx, faded(hooks, look, view), spec.scale or None)
        y_BHAK = attend(q_BHAK, state.k_BGMK, state.v_BGMK, look.pattern, view, part.talk.among_heads(scoring))
        return part.out(y_BHAK.transpose(1, 2).flatten(2)), state


def _mapped(part: _SelfAttention, x_BLD: Tensor, rows: slice) -> Tensor:
    """Apply some of the maps that an attention packs into one: [B, H, L, K]."""
    bias = None if part.qkv.bias is None else part.qkv.bias[rows]
    return F.linear(x_BLD, part.qkv.weight[rows], bias).unflatten(-1, (-1, part.d_head)).transpose(1, 2)


def _rows(x_BL: Tensor, at_BA: Tensor) -> Tensor:
    return x_BL.expand(len(at_BA), -1).gather(1, at_BA)
