"""Discretised mixture of logistics: log-likelihood of pixel values (Salimans et al. 2017)."""

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = -7.0
"""Least log scale, where the whole range is 2 wide: a finer peak than that gains nothing."""


def mixture(scores_LR: Tensor, value_L: Tensor, highest: int) -> Tensor:
    r"""Return the log-probability of values $0 \dots$ `highest` under mixtures of discretised logistics.

    $P(v) = \sum_k \pi_k\,[\sigma((x_v + h - \mu_k) / s_k) - \sigma((x_v - h - \mu_k) / s_k)]$ with $x_v = 2v/V - 1$ and
    $h = 1/V$; the lowest value has all that lies below it, the highest all above, so the probabilities add up to 1.
    Scores are the logits of $\pi$, the means and the logarithms of the scales, side by side. Salimans et al. 2017,
    equation 2; Parmar et al. 2018, section 3.3. The difference is taken in logarithms, exactly:
    $\sigma(a) - \sigma(b) = \sigma(a)\,\sigma(-b)\,(1 - e^{b - a})$, so no value is ever impossible.
    Cost: a few operations per component. Reference: `kinfolk.ops.naive.discretized_logistic`.
    """
    weight_LR, mean_LR, log_scale_LR = scores_LR.chunk(3, dim=-1)
    rate_LR = torch.exp(-log_scale_LR.clamp(min=LEAST))
    half, value_L1 = 1 / highest, value_L.unsqueeze(-1)
    away_LR = 2 * value_L1.to(scores_LR.dtype) / highest - 1 - mean_LR
    # the highest value takes all that lies above it and the lowest all below: a factor of 1, whose logarithm is 0
    below_LR = torch.where(value_L1 < highest, F.logsigmoid((away_LR + half) * rate_LR), 0.0)
    above_LR = torch.where(value_L1 > 0, F.logsigmoid((half - away_LR) * rate_LR), 0.0)
    inside = (value_L1 > 0) & (value_L1 < highest)
    # 1 - e^x loses its digits for a scale that is wide beside a bin; expm1 does not
    width_LR = torch.where(inside, torch.log(-torch.expm1(-2 * half * rate_LR)), 0.0)
    # in logarithms: far from all means every component underflows
    return torch.logsumexp(weight_LR.log_softmax(-1) + below_LR + above_LR + width_LR, -1)
