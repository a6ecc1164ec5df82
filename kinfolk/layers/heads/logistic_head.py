"""Discretised mixture of logistics over pixel intensities (PixelCNN++, Salimans et al. 2017)."""

import torch
from torch import Tensor

from kinfolk.core.bounds import NonNegativeInt, PositiveInt
from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.head import Head, HeadModule, NormalisedHead
from kinfolk.layers.module import Dims, Linear
from kinfolk.ops.discretized_logistic import mixture

IMPOSSIBLE = -70.0
"""The log-probability of an id that is no value, so small that it never matters beside the values'."""


class LogisticMixture(Head, kind="logistic-mixture"):
    """Discretised mixture of `n_components` logistics for the next value of an image (Parmar et al. 2018, section 3.3).

    Three numbers for each component instead of one for each value. Channels are predicted one after another, each from
    a state that has read those before it, so means need no further dependence on them. `first` is the id of value 0.
    """

    n_components: PositiveInt = 10
    first: NonNegativeInt = 7

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _LogisticMixture(self, dims)

    def cost(self, dims: Dims) -> Cost:
        # what is kept of each component: twelve numbers on the way from scores to a probability
        return linear(dims.d_model, 3 * self.n_components, True) + Cost(kept=12 * self.n_components)


class _LogisticMixture(NormalisedHead):
    def __init__(self, spec: LogisticMixture, dims: Dims) -> None:
        super().__init__()
        if dims.vocab_size < spec.first + 2:
            raise SpecError(f"vocab_size: {dims.vocab_size} leaves no two values after the first {spec.first} ids")
        self.first, self.n_classes, self.highest = spec.first, dims.vocab_size, dims.vocab_size - spec.first - 1
        self.scores = Linear(dims.d_model, 3 * spec.n_components)

    def log_probs(self, x_LD: Tensor) -> Tensor:
        scores_LR, n_values = self._scores(x_LD), self.highest + 1
        values = torch.arange(n_values, device=x_LD.device).repeat(len(x_LD))
        found_LV = mixture(scores_LR.repeat_interleave(n_values, 0), values, self.highest).unflatten(0, (-1, n_values))
        return torch.nn.functional.pad(found_LV, (self.first, 0), value=IMPOSSIBLE)

    def _scores(self, x_LD: Tensor) -> Tensor:
        """Return the numbers of all components in at least 32 bits: probabilities are differences of them."""
        scores_LR: Tensor = self.scores(x_LD)
        return scores_LR.to(torch.promote_types(scores_LR.dtype, torch.float32))

    def total(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        return -self._log_prob(x_LD, targets_L).sum()

    def each(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        return -self._log_prob(x_LD, targets_L)

    def _log_prob(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        value_L = targets_L - self.first
        # ids below the first are no values; what they get here is replaced
        found_L = mixture(self._scores(x_LD), value_L.clamp(min=0), self.highest)
        return torch.where(value_L >= 0, found_L, IMPOSSIBLE)
