"""Pruning during training: magnitude and movement pruning of linear layers (Sanh et al. 2020)."""

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import Probability, Rate
from kinfolk.core.cost import Cost
from kinfolk.core.errors import SpecError
from kinfolk.layers.linear_maps import LinearMap, Mapped
from kinfolk.layers.module import Linear


class PrunedMap(LinearMap):
    """Pruned linear layer: the whole map, the scores of its weights if learnt, and the share that is gone."""

    def __init__(self, spec: "Pruned", linear: Linear) -> None:
        super().__init__()
        self.spec = spec
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.whole = linear
        self.scores = nn.Parameter(torch.zeros_like(linear.weight)) if spec.method == "movement" else None
        # as it is when it has learnt, unless somebody says how far it is
        self.gone = spec.share
        self._mask: Tensor | None = None

    def at_progress(self, progress: float) -> None:
        """Keep as many weights as this share of the training wants; which ones is decided here, between passes."""
        self.gone = self.spec.gone(progress)
        self._mask = self.mask()

    def train(self, mode: bool = True) -> "PrunedMap":
        """Outside of training steps which weights are kept is always looked up."""
        self._mask = self._mask if mode else None
        super().train(mode)
        return self

    @torch.no_grad()
    def mask(self) -> Tensor:
        """Return which weights are kept, ties going to the first."""
        scores = self.whole.weight.abs() if self.scores is None else self.scores
        n_kept = scores.numel() - math.floor(self.gone * scores.numel())
        kept = scores.flatten().argsort(descending=True, stable=True)[:n_kept]
        mask = torch.zeros(scores.numel(), dtype=scores.dtype, device=scores.device)
        mask[kept] = 1
        return mask.view_as(scores)

    @property
    def weight(self) -> Tensor:
        mask = self.mask() if self._mask is None else self._mask
        weight = self.whole.weight * mask
        if self.scores is None or not torch.is_grad_enabled():
            return weight
        # nothing is added, but scores get the gradient that the mask would get
        return weight + (self.scores - self.scores.detach()) * self.whole.weight.detach()

    @property
    def bias(self) -> Tensor | None:
        return self.whole.bias


class Pruned(Mapped, kind="pruned"):
    r"""Magnitude and movement pruning: $W \odot M$, M keeps the best of each matrix; `share` of them go in the end.

    "magnitude": the best are the largest. "movement": the best have the highest scores S, which learn as if M were S
    itself, $\partial L / \partial S = \partial L / \partial W' \odot W$ with $W' = W \odot M$, so that a weight that
    moves away from zero is kept, however small. Only the order of scores counts, so they need no rate of their own.

    None are gone for the first `warm` of the training, all of the share for the last `cool` of it, and between the
    share that is kept falls by the cubic schedule of Zhu and Gupta 2018, equation 1.
    """

    makes: ClassVar[type[LinearMap]] = PrunedMap

    share: Rate
    method: Literal["movement", "magnitude"] = "movement"
    warm: Probability = 0.1
    cool: Probability = 0.3

    def __post_init__(self) -> None:
        if self.warm + self.cool > 1:
            raise SpecError(f"warm, cool: {self.warm} and {self.cool} are not shares of one training")

    def exchanged(self, name: str, linear: Linear) -> nn.Module:
        return PrunedMap(self, linear)

    def more(self, name: str, linear: Linear) -> Cost:
        scores = linear.in_features * linear.out_features if self.method == "movement" else 0
        return Cost(scores)

    def gone(self, progress: float) -> float:
        """Return the share that is gone when so much of the training is over."""
        if progress <= self.warm:
            return 0.0
        if progress >= 1 - self.cool:
            return self.share
        left = 1 - (progress - self.warm) / (1 - self.warm - self.cool)
        return self.share * (1 - left**3)
