r"""What the heads of a model do, read from their weights alone (Clark et al. 2019, sections 3 and 6).

Weights of a head over a text are [L, L], rows summing to 1 where anything is seen.
"""

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

SMOOTH, SMOOTH_PAIRS = 1e-4, 1e-3
"""What is taken from weights and spread evenly before logarithms, for entropies and for distances between heads."""
POSITION, SPECIAL, BROAD = 0.5, 0.6, 0.9
"""Shares above which a head is called after a neighbour or a separator; and of an even head's entropy, broad."""


@dataclasses.dataclass(frozen=True)
class Habit:
    """What one head does with a text: mean weights by the position of a key, and how spread they are.

    previous, next_, itself, first: weight on the token before, the one after, itself, the very first; separators: on
    specials other than the first. entropy in nats, even: that of weights spread over all that may be seen.
    distance: mean of |i - j|.
    """

    itself: float
    previous: float
    next_: float
    first: float
    separators: float
    entropy: float
    even: float
    distance: float

    @property
    def name(self) -> str:
        """What the head is called by what it mostly does."""
        shares = {"previous": self.previous, "next": self.next_, "itself": self.itself}
        best = max(shares, key=lambda name: shares[name])
        if shares[best] > POSITION:
            return best
        if self.first > SPECIAL:
            return "first"
        if self.separators > SPECIAL:
            return "separators"
        return "broad" if self.even > 0 and self.entropy > BROAD * self.even else "mixed"


def habits(weights_HLL: Tensor, is_special_L: Tensor) -> list[Habit]:
    """Describe every head of a layer."""
    w = weights_HLL.double()
    n = w.shape[1]
    at = torch.arange(n)
    away = (at[:, None] - at).abs().double()
    seen = (w.amax(0) > 0).sum(-1).clamp(min=1)
    even = float(seen.double().log().mean())
    others = is_special_L.clone()
    others[0] = False
    return [
        Habit(
            itself=_mean(head.diagonal()),
            previous=_mean(head.diagonal(-1)),
            next_=_mean(head.diagonal(1)),
            first=_mean(head[:, 0]),
            separators=_mean(head[:, others].sum(-1)),
            entropy=float(entropy(head).mean()),
            even=even,
            distance=float((head * away).sum(-1).mean()),
        )
        for head in w
    ]


def entropy(weights_LM: Tensor) -> Tensor:
    """Return the entropy of each row in nats, a little smoothed; even weights over n keys give ln n."""
    p = (1 - SMOOTH) * weights_LM.double() + SMOOTH / weights_LM.shape[-1]
    return -torch.special.xlogy(p, p).sum(-1)


def distances(weights_NLL: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of every two heads, summed over tokens: [N, N], each row at most ln 2."""
    n = weights_NLL.shape[-1]
    p = (1 - SMOOTH_PAIRS) * weights_NLL.double() + SMOOTH_PAIRS / n
    own_N = torch.special.xlogy(p, p).sum((-1, -2))
    out = torch.zeros(len(p), len(p), dtype=torch.float64)
    for i in range(len(p)):
        middle = (p[i] + p) / 2
        shared = torch.special.xlogy(middle, middle).sum((-1, -2))
        out[i] = (own_N[i] + own_N) / 2 - shared
    return out.clamp(min=0)


def places(distance_NN: Tensor) -> np.ndarray:
    """Put heads on a plane so that their distances are kept as well as they can be: classical scaling."""
    d2 = distance_NN.numpy()
    n = len(d2)
    if n < 3:
        return np.stack([np.arange(n), np.zeros(n)], 1).astype(float)
    centring = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * centring @ d2 @ centring)
    best = np.argsort(values)[::-1][:2]
    return np.asarray(vectors[:, best] * np.sqrt(np.clip(values[best], 0, None)))


def rollout(weights: list[Tensor]) -> Tensor:
    """Follow attention through layers: half of each token is itself, half what it looks at (Abnar and Zuidema 2020)."""
    n = weights[0].shape[-1]
    through = torch.eye(n, dtype=torch.float64)
    for w_HLL in weights:
        step = 0.5 * w_HLL.double().mean(0) + 0.5 * torch.eye(n, dtype=torch.float64)
        through = (step / step.sum(-1, keepdim=True)) @ through
    return through


def _mean(x: Tensor) -> float:
    return float(x.mean()) if x.numel() else math.nan
