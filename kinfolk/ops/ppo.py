"""Proximal policy optimisation (PPO): clipped surrogate objective, log-likelihoods and entropy."""

import math

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped


@shaped(out="BL")
def surrogate(log_probs_BL: Tensor, acted_BL: Tensor, advantages_BL: Tensor, clip: float) -> Tensor:
    r"""Return $-\min(\rho A,\ \mathrm{clip}(\rho, 1 - c, 1 + c) A)$ (Schulman et al. 2017, equation 7), a loss.

    $\rho = \exp(\log\pi - \log\pi_{acted})$: how much likelier an action is now than when it was taken. Where it
    became so by more than `clip` in the direction of its advantage there is nothing more to gain, and no gradient.
    Reference: `kinfolk.ops.naive.ppo`.
    """
    # a difference of logarithms, since probabilities of rare actions underflow
    ratio_BL = (log_probs_BL - acted_BL).exp()
    return -torch.minimum(ratio_BL * advantages_BL, ratio_BL.clamp(1 - clip, 1 + clip) * advantages_BL)


@shaped(out="BL")
def entropy(logits_BLV: Tensor) -> Tensor:
    r"""Return $-\sum_a \pi_a \log \pi_a$ in nats. Reference: `kinfolk.ops.naive.ppo`."""
    log_probs_BLV = logits_BLV.log_softmax(-1)
    return -(log_probs_BLV.exp() * log_probs_BLV).sum(-1)


@shaped(out="BL")
def gaussian(actions_BLV: Tensor, means_BLV: Tensor, log_stds_V: Tensor) -> Tensor:
    r"""Return $\sum_v \log N(a_v; \mu_v, \sigma_v)$ of actions that are vectors of independent numbers.

    Reference: `kinfolk.ops.naive.ppo`.
    """
    away_BLV = (actions_BLV - means_BLV) * (-log_stds_V).exp()
    return (-0.5 * away_BLV.square() - log_stds_V - 0.5 * math.log(2 * math.pi)).sum(-1)
