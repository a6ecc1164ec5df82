"""Mixture-of-experts feed-forward: tokens sorted by expert, one matrix product for each.

Tokens are sorted by expert, so that every expert multiplies one contiguous piece and no table of tokens times experts
exists.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.device import autocast_dtype, tally
from kinfolk.core.gradient_memory import empty_gradient
from kinfolk.core.machine import AMD, cpu_field
from kinfolk.core.shapes import shaped
from kinfolk.ops.activated_linear import Activation, activate, activate_again
from kinfolk.ops.gated_linear import gate, gate_again
from kinfolk.ops.linear_map import linear_into, linear_map

FEW = 64
"""Tokens up to which an accelerator runs all experts without gradients: to ask which are needed takes longer."""
TILE, TOKENS = 128, range(33, 161)
"""Rows of a weight's gradient that are one product, and the numbers of tokens for which it is cut into such tiles."""


class ExpertWeights(NamedTuple):
    """Two maps for every expert; biases may be missing.

    Where the first is twice as wide as the second expects, experts are gated (`ops/gated_linear`).
    """

    widen_EFD: Tensor
    widen_EF: Tensor | None
    narrow_EDF: Tensor
    narrow_ED: Tensor | None

    @property
    def gated(self) -> bool:
        """True if a half of what the first map makes is a gate for the other."""
        return self.widen_EFD.shape[1] != self.narrow_EDF.shape[2]


@shaped(out="LD")
def mix_experts(
    x_LD: Tensor,
    expert_Lk: Tensor,
    gate_Lk: Tensor,
    weights: ExpertWeights,
    activation: Activation,
    seats: int | None = None,
) -> Tensor:
    r"""Return $\sum_k g_k\,\big(W_2^{(e_k)}\,\phi(W_1^{(e_k)} x + b_1^{(e_k)}) + b_2^{(e_k)}\big)$ for each token.

    Shazeer et al. 2017, equation 1, over the chosen experts only; an expert number beyond the last means none
    and adds nothing. A token's choices must differ. Kept for the backward pass: the input and, for each choice, what
    went into the activation (of a rectifier: what came out); outputs of experts are never kept, because the gradient of
    a gate can be had from the inside of its expert. `seats` is the most tokens that an expert can have, where that is
    known: an accelerator then reserves this number of places for each expert instead of asking how many tokens came.
    Cost: four products of D x F for each choice. Reference: `kinfolk.ops.naive.experts`.
    """
    x_LD = x_LD.to(autocast_dtype(x_LD.device) or x_LD.dtype)
    gate_Lk = gate_Lk.to(x_LD.dtype)
    few = not torch.is_grad_enabled() and len(x_LD) <= FEW
    if torch.compiler.is_exporting() or (few and x_LD.device.type != "cpu"):
        return _all(x_LD, expert_Lk, gate_Lk, activation, weights)
    if seats is not None and x_LD.device.type != "cpu":
        return seated(x_LD, expert_Lk, gate_Lk, weights, activation, seats)
    if torch.is_grad_enabled():
        out: Tensor = _MixExperts.apply(x_LD, expert_Lk, gate_Lk, activation, *weights)
        return out
    return _forward(x_LD, _Pieces.of(expert_Lk, len(weights.narrow_EDF)), gate_Lk, activation, weights, None)


def seated(
    x_LD: Tensor, expert_Lk: Tensor, gate_Lk: Tensor, weights: ExpertWeights, activation: Activation, seats: int
) -> Tensor:
    """Return what `mix_experts` does, by batched products over `seats` places for each expert: no size depends on data.

    An expert must not have more tokens than seats. Reference: `kinfolk.ops.naive.experts`.
    """
    n_experts, k, flat = len(weights.narrow_EDF), expert_Lk.shape[1], expert_Lk.flatten()
    order, counts = flat.argsort(stable=True), tally(flat, n_experts + 1)
    rank = torch.empty_like(flat)
    rank[order] = torch.arange(len(flat), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
    # one place more, for all who go nowhere
    place = torch.where(flat < n_experts, flat * seats + rank, n_experts * seats)
    rows_nD = x_LD.new_zeros(n_experts * seats + 1, x_LD.shape[1])
    rows_ECD = rows_nD.index_copy(0, place, x_LD.repeat_interleave(k, 0))[:-1].unflatten(0, (n_experts, seats))
    u_ECF = _affines(rows_ECD, weights.widen_EFD, weights.widen_EF)
    y_ECD = _affines(_inside(u_ECF, activation, weights.gated), weights.narrow_EDF, weights.narrow_ED)
    y_nD = torch.cat([y_ECD.flatten(0, 1), y_ECD.new_zeros(1, y_ECD.shape[-1])])
    return (y_nD[place].unflatten(0, (-1, k)) * gate_Lk[..., None]).sum(1)


class _Pieces(NamedTuple):
    """Who goes where: `order` lists choices (token * k + choice) by expert, `counts` how many each expert has."""

    order: Tensor
    counts: list[int]
    k: int

    @property
    def rows(self) -> Tensor:
        """The token of every choice, sorted by expert."""
        return self.order if self.k == 1 else self.order // self.k

    def empty(self, like: Tensor) -> Tensor:
        """Return a place for one row of every choice; rows of choices without an expert, which come last, are zero."""
        y_nD = like.new_empty(len(self.order), like.shape[1])
        y_nD[sum(self.counts) :].zero_()
        return y_nD

    @classmethod
    def of(cls, expert_Lk: Tensor, n_experts: int) -> "_Pieces":
        """Sort choices by expert; within an expert tokens stay in order."""
        flat = expert_Lk.flatten()
        counts = tally(flat, n_experts + 1)[:n_experts].tolist()
        return cls(flat.argsort(stable=True), counts, expert_Lk.shape[1])

    @property
    def slices(self) -> list[tuple[int, slice]]:
        """Each expert that has tokens, and where they lie."""
        found, at = [], 0
        for e, n in enumerate(self.counts):
            if n:
                found.append((e, slice(at, at + n)))
            at += n
        return found

    def summed(self, sorted_nD: Tensor, factor_Lk: Tensor | None) -> Tensor:
        """Bring what lies sorted back to its tokens, times a factor, and add up each token's choices."""
        back = torch.empty_like(self.order)
        back[self.order] = torch.arange(len(self.order), device=back.device)
        y_LkD = sorted_nD.index_select(0, back).unflatten(0, (-1, self.k))
        if factor_Lk is not None:
            y_LkD.mul_(factor_Lk[..., None])
        return y_LkD[:, 0] if self.k == 1 else y_LkD.sum(1)


class _MixExperts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, expert: Tensor, gate: Tensor, activation: Activation, *weights: Tensor | None
    ) -> Tensor:
        w = ExpertWeights(*weights)  # type: ignore[arg-type]
        pieces = _Pieces.of(expert, len(w.narrow_EDF))
        insides: list[Tensor] = []
        out = _forward(x, pieces, gate, activation, w, insides)
        ctx.save_for_backward(x, gate, pieces.order, *weights, *insides)
        ctx.counts, ctx.activation = pieces.counts, activation
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, gate, order, *saved = ctx.saved_tensors
        w, insides, pieces = ExpertWeights(*saved[:4]), saved[4:], _Pieces(order, ctx.counts, gate.shape[1])
        # every expert that has tokens writes its own piece: filling all with zeros first would write them twice
        grads: list[Any] = [None if p is None else empty_gradient(p) for p in w]
        for grad in (g for g in grads if g is not None):
            for e in (e for e, n in enumerate(pieces.counts) if not n):
                grad[e].zero_()
        dx, rows_n, gate_n = pieces.empty(x), pieces.rows, gate.view(-1)[order]
        d_gate_n = torch.zeros_like(gate_n)
        again = gate_again if w.gated else _rectify_again if ctx.activation == "relu" else activate_again
        for (e, where), u in zip(pieces.slices, insides, strict=True):
            rows, g = rows_n[where], gate_n[where, None]
            x_e, dy_e = x.index_select(0, rows), dy.index_select(0, rows).to(x.dtype)
            d_value = linear_map(dy_e, w.narrow_EDF[e].to(x.dtype).mT)
            value, du = again(u, d_value * g, ctx.activation)
            torch.sum(d_value.mul_(value), -1, out=d_gate_n[where])
            if w.narrow_ED is not None:
                d_gate_n[where] += dy_e @ w.narrow_ED[e].to(x.dtype)
            dy_e = dy_e * g
            linear_into(du, w.widen_EFD[e].to(x.dtype).mT, None, dx[where])
            for grad, left, right in ((grads[0], du, x_e), (grads[2], dy_e, value)):
                _product(left, right, grad[e])
            for grad, summand in ((grads[1], du), (grads[3], dy_e)):
                if grad is not None:
                    grad[e] = summand.sum(0)
        d_gate = torch.empty_like(gate_n).index_copy_(0, order, d_gate_n).view_as(gate)
        return pieces.summed(dx, None), None, d_gate, None, *grads


def _forward(
    x: Tensor, pieces: _Pieces, gate: Tensor, activation: Activation, w: ExpertWeights, kept: list[Tensor] | None
) -> Tensor:
    """Run the experts; what goes into their activations is added to `kept`, of a rectifier what comes out of it."""
    y, rows = pieces.empty(x), pieces.rows
    for e, where in pieces.slices:
        x_e = x.index_select(0, rows[where])
        u = _affine(x_e, w.widen_EFD[e], None if w.widen_EF is None else w.widen_EF[e])
        rectified = activation == "relu" and not w.gated
        inside = u.relu_() if rectified else _inside(u, activation, w.gated)
        _affine(inside, w.narrow_EDF[e], None if w.narrow_ED is None else w.narrow_ED[e], y[where])
        if kept is not None:
            # one block for all would be so large that the system hands it out anew at every step, page by page
            kept.append(u)
    return pieces.summed(y, gate)


def _rectify_again(value: Tensor, d_value: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """Return the kept values and the gradient of what went in: where that was not positive, its value is 0."""
    return value, torch.ops.aten.threshold_backward(d_value, value, 0)


def _all(x_LD: Tensor, expert_Lk: Tensor, gate_Lk: Tensor, activation: Activation, w: ExpertWeights) -> Tensor:
    """Run every expert on every token: a graph cannot be told how many tokens each will have."""
    y_LD = torch.zeros_like(x_LD)
    for e in range(len(w.narrow_EDF)):
        u_LF = _affine(x_LD, w.widen_EFD[e], None if w.widen_EF is None else w.widen_EF[e])
        inside = _inside(u_LF, activation, w.gated)
        out = _affine(inside, w.narrow_EDF[e], None if w.narrow_ED is None else w.narrow_ED[e])
        y_LD = y_LD + out * torch.where(expert_Lk == e, gate_Lk, 0.0).sum(1, keepdim=True)
    return y_LD


def _inside(u: Tensor, activation: Activation, gated: bool) -> Tensor:
    return gate(u, activation) if gated else activate(u, activation)


def _affines(x_ECD: Tensor, w_EFD: Tensor, b_EF: Tensor | None) -> Tensor:
    y_ECF = x_ECD @ w_EFD.to(x_ECD.dtype).mT
    return y_ECF if b_EF is None else y_ECF + b_EF.to(x_ECD.dtype)[:, None]


def _affine(x: Tensor, w: Tensor, b: Tensor | None, out: Tensor | None = None) -> Tensor:
    w, b = w.to(x.dtype), None if b is None else b.to(x.dtype)
    if out is None:
        return linear_map(x, w, b)
    linear_into(x, w, b, out)
    return out


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write the gradient of one expert's matrix where it belongs: a copy of all of them would be as large as they.

    A product of few tokens is made `TILE` rows of the result after the other: a whole one stops to wait for the memory
    that it writes, those of tiles go on.
    """
    if left.dtype != out.dtype:
        out.copy_(left.mT @ right)
    elif len(left) in TOKENS and len(out) % TILE == 0 and out.element_size() >= 4 and _tiles_pay(out.device.type):
        n = len(out) // TILE
        tiles = left.mT.unflatten(0, (n, TILE)), right.expand(n, *right.shape)
        torch.bmm(*tiles, out=out.unflatten(0, (n, TILE)))
    else:
        linear_into(left.mT, right.mT, None, out)


@functools.cache
def _tiles_pay(device: str) -> bool:
    """Tell whether MKL multiplies and the processor is one for which it was made: of others nothing is known."""
    return device == "cpu" and torch.backends.mkl.is_available() and cpu_field("vendor_id") != AMD
