"""Sampling: from logits to the next token of each row (greedy, temperature, top-k, top-p)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kinfolk.core.device import send, wide
from kinfolk.core.rng import Rng
from kinfolk.decoding.options import Decoding


def choose(logits_BV: Tensor, how: Decoding, seen_BL: Tensor | None, draws: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return one token per row.

    seen_BL: the tokens so far, negative where there is none; None where no penalty needs them.
    draws: the seed, number and step of each row, of which its random number is a pure function.
    """
    if seen_BL is not None:
        logits_BV = penalise(logits_BV, seen_BL, how.repetition_penalty)
    if how.greedy:
        return logits_BV.argmax(-1)
    probability_BV = wide(distribution(logits_BV, how))
    # a random number of its own for each row and step: other rows of the batch do not change its text
    u_B = torch.tensor([Rng(seed).example(row, f"token {step}").random() for seed, row, step in draws])
    cumulative_BV = probability_BV.cumsum(-1)
    u_B1 = send(u_B.to(cumulative_BV.dtype), logits_BV.device)[:, None]
    return torch.searchsorted(cumulative_BV, u_B1 * cumulative_BV[:, -1:], right=True)[:, 0]


def distribution(logits_BV: Tensor, how: Decoding) -> Tensor:
    """Return the distribution that is sampled from: tempered, then cut to the likeliest tokens."""
    logits_BV = logits_BV / how.temperature
    if how.top_k:
        smallest_B1 = logits_BV.topk(min(how.top_k, logits_BV.shape[-1])).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_B1, -torch.inf)
    probability_BV = logits_BV.softmax(-1)
    if how.top_p < 1:
        sorted_BV, order_BV = probability_BV.sort(dim=-1, descending=True)
        # a token stays if what is before it has not yet reached top_p, so at least one does
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        cut_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(1, order_BV, before_BV >= how.top_p)
        probability_BV = probability_BV.masked_fill(cut_BV, 0.0)
    return probability_BV / probability_BV.sum(-1, keepdim=True)


def penalise(logits_BV: Tensor, seen_BL: Tensor, penalty: float) -> Tensor:
    """Make tokens that are already there less likely."""
    if penalty == 1.0:
        return logits_BV
    mark_BV = torch.zeros_like(logits_BV).scatter_add_(1, seen_BL.clamp(min=0), (seen_BL >= 0).to(logits_BV.dtype)) > 0
    return torch.where(mark_BV, torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty), logits_BV)
