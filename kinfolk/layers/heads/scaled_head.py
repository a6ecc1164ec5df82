"""Language-model head of unit vectors with a gain for each token (nGPT, Loshchilov et al. 2024)."""

import torch
from torch import Tensor, nn

from kinfolk.core.cost import Cost
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.head import HeadModule, LMHead, LMHeadModule
from kinfolk.layers.module import Dims
from kinfolk.ops.cross_entropy import capped


class ScaledLMHead(LMHead, kind="scaled-lm"):
    r"""Language-model head of nGPT: $s_z \odot E x$ (arXiv:2410.01131, equation 3); cosines alone are too small.

    The gain of each token begins at 1 and is stored as $D^{-1/2}$.
    """

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _ScaledLMHead(self, dims, embedding)

    def cost(self, dims: Dims) -> Cost:
        return super().cost(dims) + Cost(dims.vocab_size)


class _ScaledLMHead(LMHeadModule):
    def __init__(self, spec: ScaledLMHead, dims: Dims, embedding: EmbeddingModule) -> None:
        super().__init__(spec, dims, embedding)
        self.stored = dims.d_model**-0.5
        self.gain_V = nn.Parameter(torch.full((dims.vocab_size,), self.stored))

    def draw(self) -> None:
        """Begin with gains of 1."""
        nn.init.constant_(self.gain_V, self.stored)

    @property
    def weight(self) -> Tensor:
        return super().weight * (self.gain_V / self.stored).unsqueeze(1)

    def logits(self, x_BLD: Tensor) -> Tensor:
        # gains on the few logits of a step instead of on the whole matrix
        scores = nn.functional.linear(self.states(x_BLD), super().weight) * (self.gain_V / self.stored)
        return capped(scores if self.bias is None else scores + self.bias, self.softcap)
