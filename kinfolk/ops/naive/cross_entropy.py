"""Smoothed cross-entropy of an output layer, one token and one class at a time."""

import torch
from torch import Tensor


def cross_entropy(
    h: Tensor,
    w: Tensor,
    b: Tensor | None,
    target: Tensor,
    gold: float,
    uniform: float,
    softcap: float = 0.0,
    z: float = 0.0,
) -> Tensor:
    """Sum over tokens of - sum over classes of q_v log p_v, with q = uniform everywhere and gold more on the target.

    Logits go through softcap * tanh(. / softcap) first, and z times the squared log-normaliser is added.
    """
    total = (h.sum() + w.sum()) * 0.0
    for t in range(len(h)):
        logits = [(w[v] * h[t]).sum() + (0.0 if b is None else b[v]) for v in range(len(w))]
        logits = [softcap * torch.tanh(logit / softcap) if softcap else logit for logit in logits]
        norm = torch.stack(logits).exp().sum().log()
        total = total + z * norm**2
        for v, logit in enumerate(logits):
            q = uniform + (gold if v == int(target[t]) else 0.0)
            total = total - q * (logit - norm)
    return total


def mixture_cross_entropy(h: Tensor, log_prior: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """Sum over tokens of - log of the sum over components of prior times softmax, in probabilities."""
    total = (h.sum() + w.sum() + log_prior.sum()) * 0.0
    for t in range(len(h)):
        p = torch.zeros_like(total)
        for k in range(h.shape[1]):
            exps = [(w[v] * h[t, k]).sum().exp() for v in range(len(w))]
            p = p + log_prior[t, k].exp() * exps[int(target[t])] / sum(exps, torch.zeros_like(total))
        total = total - p.log()
    return total
