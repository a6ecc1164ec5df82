"""Mixture of softmaxes: logits whose rank exceeds the width of hidden states (Yang et al. 2018)."""

import torch
from torch import Tensor

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.cost import Cost, linear
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.head import Head, NormalisedHead, Tie, output_cost
from kinfolk.layers.module import Dims, Linear, borrow
from kinfolk.ops.cross_entropy import mixture_cross_entropy, mixture_token_losses


class MixtureHead(Head, kind="mixture"):
    r"""Mixture of softmaxes (Yang et al. 2018).

    $\sum_k \pi_k\,\mathrm{softmax}(E \tanh(W_k h))$ with $\pi = \mathrm{softmax}(W_\pi h)$.
    """

    n_components: PositiveInt = 15
    weights: Tie = "tied"

    def build(self, dims: Dims, embedding: EmbeddingModule) -> NormalisedHead:
        return _MixtureHead(self, dims, embedding)

    def cost(self, dims: Dims) -> Cost:
        k, d, output = self.n_components, dims.d_model, output_cost(dims, self.weights, False)
        maps = linear(d, k * d, True) + linear(d, k, False, kept=False)
        # for each component the state after its tanh, and the finished gradient
        return maps + Cost(output.params, k * output.flops + 2.0 * k * d, k * (output.kept + d + 2))


class _MixtureHead(NormalisedHead):
    def __init__(self, spec: MixtureHead, dims: Dims, embedding: EmbeddingModule) -> None:
        super().__init__()
        self.n_classes, self.n_components = dims.vocab_size, spec.n_components
        self.components = Linear(dims.d_model, spec.n_components * dims.d_model, packs=spec.n_components)
        self.prior = Linear(dims.d_model, spec.n_components, bias=False)
        self.untied = Linear(dims.d_model, dims.vocab_size, bias=False) if spec.weights == "untied" else None
        borrow(self, "embedding", embedding)

    @property
    def weight(self) -> Tensor:
        return self.embedding.weight if self.untied is None else self.untied.weight

    def log_probs(self, x_LD: Tensor) -> Tensor:
        h_LkD, log_prior_Lk = self._mixture(x_LD)
        # one component after the other, so that no tensor holds them all
        each = (
            log_prior_Lk[:, k : k + 1] + torch.nn.functional.linear(h_LkD[:, k], self.weight).log_softmax(-1)
            for k in range(self.n_components)
        )
        total_LV = next(each)
        for log_probs_LV in each:
            # added as logarithms: rare words underflow as probabilities
            total_LV = torch.logaddexp(total_LV, log_probs_LV)
        return total_LV

    def total(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        h_LkD, log_prior_Lk = self._mixture(x_LD)
        return mixture_cross_entropy(h_LkD, log_prior_Lk, self.weight, targets_L)

    def each(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        h_LkD, log_prior_Lk = self._mixture(x_LD)
        return mixture_token_losses(h_LkD, log_prior_Lk, self.weight, targets_L)

    def _mixture(self, x_LD: Tensor) -> tuple[Tensor, Tensor]:
        h_LkD = torch.tanh(self.components(x_LD)).unflatten(-1, (self.n_components, -1))
        inward = h_LkD if self.untied is not None else self.embedding.inward(h_LkD)
        return inward, self.prior(x_LD).log_softmax(-1)
