"""Replaced-token detection head: whether each token is original (ELECTRA, Clark et al. 2020)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.batch import IGNORE
from kinfolk.core.cost import Cost, linear
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.head import Head, HeadModule
from kinfolk.layers.module import Dims, Linear
from kinfolk.ops.activated_linear import ACTIVATIONS, Activation


class DetectionHead(Head, kind="detection"):
    """Replaced-token detection: one score per token through a layer as wide as the model, high for a replacement.

    Clark et al. 2020, section 2 and the released code. As scores of two classes: 0 for a token that was kept.
    """

    activation: Activation = "gelu"

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _DetectionHead(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return linear(dims.d_model, dims.d_model, True) + Cost(kept=dims.d_model) + linear(dims.d_model, 1, True)


class _DetectionHead(HeadModule):
    n_scores = 2

    def __init__(self, spec: DetectionHead, dims: Dims) -> None:
        super().__init__()
        self.hidden = Linear(dims.d_model, dims.d_model)
        self.activation = ACTIVATIONS[spec.activation]
        self.output = Linear(dims.d_model, 1)

    def logits(self, x_BLD: Tensor) -> Tensor:
        return F.pad(self._score(x_BLD).unsqueeze(-1), (1, 0))

    def loss(self, x_BLD: Tensor, targets_BL: Tensor, epsilon: float = 0.0, over: str = "all") -> Tensor:
        # nearly all tokens are scored, and which are is known where they were drawn: the others weigh nothing
        score_BL = self._score(x_BLD)
        weight_BL = (targets_BL != IGNORE).to(score_BL.dtype)
        return F.binary_cross_entropy_with_logits(score_BL, targets_BL.to(score_BL.dtype), weight_BL, reduction="sum")

    @torch.no_grad()
    def losses(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        score_BL = self._score(x_BLD)
        each_BL = F.binary_cross_entropy_with_logits(score_BL, targets_BL.to(score_BL.dtype), reduction="none")
        # IGNORE as a target gives some number, which is cleared
        return each_BL.masked_fill(targets_BL == IGNORE, 0.0)

    def _score(self, x_BLD: Tensor) -> Tensor:
        score_BL: Tensor = self.output(self.activation(self.hidden(x_BLD))).squeeze(-1)
        # a sum over all tokens needs more than 16 bits
        return score_BL.float() if score_BL.element_size() < 4 else score_BL
