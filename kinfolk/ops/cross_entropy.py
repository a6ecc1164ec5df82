"""Output layer and cross entropy fused, in chunks of tokens, without the whole matrix of logits.

The logits of a batch are the largest tensor of a small language model, and autograd would keep three of them. Here each
chunk of tokens makes its logits, its loss and its gradients at once and forgets them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.device import autocast_dtype
from kinfolk.core.shapes import shaped
from kinfolk.ops.linear_map import add_weight_gradient, linear_into, linear_map

CHUNK_BYTES = 16 << 20
"""The logits of one chunk stay below this."""


@shaped()
def cross_entropy(
    h_LD: Tensor,
    w_VD: Tensor,
    b_V: Tensor | None,
    target_L: Tensor,
    gold: float,
    uniform: float,
    softcap: float = 0.0,
    z: float = 0.0,
) -> Tensor:
    r"""Return the summed cross-entropy of tokens whose logits are $x = W h + b$.

    $\sum_t \big(\log\sum_v e^{x_{tv}} - g\, x_{t y_t} - u \sum_v x_{tv}\big)$ with gold weight $g$ and weight $u$ on
    every class, $g + V u = 1$. Without smoothing $g = 1, u = 0$; `smoothing` makes the two for either convention
    (Szegedy et al. 2016; Vaswani et al. 2017, section 5.4). With a `softcap` c, logits are $c \tanh(x / c)$ (Gemma Team
    2024, section 2); `z` weighs the squares of log-normalisers, which are added (z-loss: Chowdhery et al. 2022,
    section 5). No tokens: 0. Cost: three products of L x D x V, and the memory of one chunk.
    Reference: `kinfolk.ops.naive.cross_entropy`.
    """
    if torch.is_grad_enabled() and (h_LD.requires_grad or w_VD.requires_grad):
        loss: Tensor = _CrossEntropy.apply(h_LD, w_VD, b_V, target_L, (gold, uniform, softcap, z))
        return loss
    return token_losses(h_LD, w_VD, b_V, target_L, gold, uniform, softcap, z).sum()


def smoothing(epsilon: float, n_classes: int, over: str) -> tuple[float, float]:
    """Return (gold, uniform): epsilon spread over "all" classes, or over the "others" only (Tensor2Tensor, fairseq)."""
    uniform = epsilon / (n_classes if over == "all" else n_classes - 1)
    return 1.0 - n_classes * uniform, uniform


@torch.no_grad()
def token_losses(
    h_LD: Tensor,
    w_VD: Tensor,
    b_V: Tensor | None,
    target_L: Tensor,
    gold: float = 1.0,
    uniform: float = 0.0,
    softcap: float = 0.0,
    z: float = 0.0,
) -> Tensor:
    """Return the loss of each token, without a gradient."""
    losses, w = [], w_VD.to(_product_dtype(h_LD))
    for some in _chunks(len(h_LD), len(w_VD), h_LD.element_size()):
        logits_LV = capped(_logits(h_LD[some], w, b_V), softcap)
        norm_L = logits_LV.logsumexp(-1)
        losses.append(_losses(logits_LV, norm_L, target_L[some], gold, uniform) + z * norm_L.square())
    return torch.cat(losses) if losses else h_LD.new_zeros(0, dtype=_exact_dtype(h_LD))


class _CrossEntropy(torch.autograd.Function):
    """Gradients are made in the forward pass, when the logits are there, and scaled in the backward pass.

    The logits become exponentials in place, once, and are never divided by their sum: states are far narrower, so
    they are divided instead.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, w: Tensor, b: Tensor | None, target: Tensor, terms: tuple[float, float, float, float]
    ) -> Tensor:
        gold, uniform, softcap, z = terms
        w_VD, exact = w.to(_product_dtype(h)), _exact_dtype(h)
        dh, dw = torch.empty_like(h), torch.zeros_like(w, dtype=exact)
        db = None if b is None else torch.zeros_like(b, dtype=exact)
        total = h.new_zeros((), dtype=exact)
        for some in _chunks(len(h), len(w), h.element_size()):
            logits, target_L1 = capped(_logits(h[some], w_VD, b), softcap), target[some, None]
            slope = 1 - (logits / softcap).square() if softcap else None
            top, kept = logits.amax(-1, keepdim=True), gold * logits.gather(-1, target_L1)
            if uniform:
                kept += uniform * logits.sum(-1, keepdim=True)
            exps = logits.sub_(top).exp_()
            sums = exps.sum(-1, keepdim=True)
            norm = sums.log() + top
            total += (norm - kept).sum()
            # the gradient of the logits, times the sums
            if z:
                total += z * norm.square().sum()
                exps.mul_(1 + 2 * z * norm)
            if uniform:
                exps.sub_(uniform * sums)
            exps.scatter_add_(-1, target_L1, -gold * sums)
            if slope is not None:
                exps.mul_(slope)
            if db is not None:
                db.addmv_(exps.mT, 1 / sums[:, 0])
            _products(exps, sums, h[some], w_VD, dh[some], dw)
        ctx.save_for_backward(dh, dw.to(w.dtype), db if db is None or b is None else db.to(b.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Any, ...]:
        dh, dw, db = ctx.saved_tensors
        # the gradients are ours alone: scale them where they are
        return dh.mul_(scale), dw.mul_(scale), None if db is None else db.mul_(scale), None, None


@shaped()
def mixture_cross_entropy(h_LkD: Tensor, log_prior_Lk: Tensor, w_VD: Tensor, target_L: Tensor) -> Tensor:
    r"""Return the summed cross-entropy of tokens under a mixture of softmaxes, one for each state of a token.

    $-\sum_t \log \sum_k \pi_{tk}\,\mathrm{softmax}(W h_{tk})_{y_t}$ (Yang et al. 2018, section 2.4). No tokens: 0.
    Cost: k times that of one softmax, and the memory of one chunk. Reference: `kinfolk.ops.naive.cross_entropy`.
    """
    if torch.is_grad_enabled() and (h_LkD.requires_grad or w_VD.requires_grad):
        loss: Tensor = _MixtureCrossEntropy.apply(h_LkD, log_prior_Lk, w_VD, target_L)
        return loss
    return mixture_token_losses(h_LkD, log_prior_Lk, w_VD, target_L).sum()


@torch.no_grad()
def mixture_token_losses(h_LkD: Tensor, log_prior_Lk: Tensor, w_VD: Tensor, target_L: Tensor) -> Tensor:
    """Return the loss of each token under a mixture, without a gradient."""
    k = h_LkD.shape[1]
    each = token_losses(h_LkD.flatten(0, 1), w_VD, None, target_L.repeat_interleave(k)).view(-1, k)
    return -torch.logsumexp(log_prior_Lk.to(each.dtype) - each, -1)


class _MixtureCrossEntropy(torch.autograd.Function):
    """As for one softmax; each is pulled by the share that it had in the probability of the target."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, log_prior: Tensor, w: Tensor, target: Tensor) -> Tensor:
        w_VD, exact, k = w.to(_product_dtype(h)), _exact_dtype(h), h.shape[1]
        dh, dw = torch.empty_like(h), torch.zeros_like(w, dtype=exact)
        d_prior, total = torch.empty_like(log_prior), h.new_zeros((), dtype=exact)
        for some in _chunks(len(h), k * len(w), h.element_size()):
            states, target_n1 = h[some].flatten(0, 1), target[some].repeat_interleave(k)[:, None]
            logits = _logits(states, w_VD, None)
            top, gold = logits.amax(-1, keepdim=True), logits.gather(-1, target_n1)
            exps = logits.sub_(top).exp_()
            sums = exps.sum(-1, keepdim=True)
            joint = (gold - top - sums.log()).view(-1, k) + log_prior[some]
            log_p = joint.logsumexp(-1, keepdim=True)
            total -= log_p.sum()
            share = (joint - log_p).exp()
            d_prior[some] = -share
            exps.scatter_add_(-1, target_n1, -sums)
            # a softmax without a share has an endless sum, and so no gradient
            _products(exps, sums / share.view(-1, 1), states, w_VD, dh[some].flatten(0, 1), dw)
        ctx.save_for_backward(dh, d_prior, dw.to(w.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Any, ...]:
        dh, d_prior, dw = ctx.saved_tensors
        return dh.mul_(scale), d_prior.mul_(scale), dw.mul_(scale), None


def _chunks(n_tokens: int, n_classes: int, size: int) -> list[slice]:
    step = max(64, CHUNK_BYTES // (n_classes * size))
    return [slice(first, min(first + step, n_tokens)) for first in range(0, n_tokens, step)]


def _product_dtype(h: Tensor) -> torch.dtype:
    """Return what products are computed in: what autocast says, else what the states have."""
    return autocast_dtype(h.device) or h.dtype


def _exact_dtype(h: Tensor) -> torch.dtype:
    """Return what is summed in: 16 bits are not enough for a sum over a vocabulary."""
    return torch.float32 if h.element_size() < 4 else h.dtype


def _logits(h: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    bias = None if b is None else b.to(w.dtype)
    return linear_map(h.to(w.dtype), w, bias).to(_exact_dtype(h))


def capped(logits: Tensor, softcap: float) -> Tensor:
    """Return c tanh(x / c); x itself where c is 0."""
    return torch.tanh(logits / softcap) * softcap if softcap else logits


def _products(exps: Tensor, sums: Tensor, h: Tensor, w: Tensor, dh: Tensor, dw: Tensor) -> None:
    """Write the gradient of the states and add that of the weights."""
    if exps.dtype == w.dtype:
        linear_into(exps, w.mT, None, dh)
        dh.div_(sums)
        add_weight_gradient(exps, h / sums, dw)
        return
    # 16 bits hold a probability, but not a state divided by a sum
    slope = exps.div_(sums).to(w.dtype)
    dh.copy_(slope @ w)
    dw += slope.mT @ h.to(w.dtype)


def _losses(logits: Tensor, norm: Tensor, target: Tensor, gold: float, uniform: float) -> Tensor:
    losses = norm - gold * logits.gather(-1, target[:, None])[:, 0]
    return losses - uniform * logits.sum(-1) if uniform else losses
