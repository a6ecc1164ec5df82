"""Reconstruction head: every token of a sequence from its last state alone (MAD, Poli et al. 2024)."""

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.cost import Cost, linear
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.class_head import JudgingHead
from kinfolk.layers.heads.head import Head, HeadModule
from kinfolk.layers.module import Dims, Linear
from kinfolk.layers.norms.norm import Norm, RMSNorm
from kinfolk.layers.positions.position import sinusoids
from kinfolk.ops.activated_linear import ACTIVATIONS
from kinfolk.ops.pooled_vector import readout


class ReconstructionHead(Head, kind="reconstruct"):
    r"""Reconstruction: scores of `n_classes` symbols at every position i from $x_{last} + P_i$, [B, L, classes].

    Poli et al. 2024 (arXiv:2403.17844), the compression task: $P_i$ are sinusoids, and two layers with a norm before
    and a GELU behind each, all of the model's width, come before the norm and the output layer.
    """

    n_classes: PositiveInt
    norm: Norm = RMSNorm()

    @property
    def n_labels(self) -> int:
        """How many symbols it scores."""
        return self.n_classes

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _ReconstructionHead(self, dims)

    def cost(self, dims: Dims) -> Cost:
        d, norm = dims.d_model, self.norm.cost(dims.d_model)
        layer = norm + linear(d, d, True) + Cost(kept=d)
        return Cost(flops=d) + layer + layer + norm + linear(d, self.n_classes, True)


class _ReconstructionHead(JudgingHead):
    def __init__(self, spec: ReconstructionHead, dims: Dims) -> None:
        super().__init__()
        d = dims.d_model
        self.layers = nn.ModuleList(Linear(d, d) for _ in range(2))
        self.norms = nn.ModuleList(spec.norm.build(d) for _ in range(3))
        self.output = Linear(d, spec.n_classes)

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        places_LD = sinusoids(torch.arange(x_BLD.shape[1], device=x_BLD.device), x_BLD.shape[2])
        y_BLD = readout(x_BLD, keep_BL, "last")[:, None] + places_LD.to(x_BLD.dtype)
        for norm, layer in zip(self.norms, self.layers, strict=False):
            y_BLD = ACTIVATIONS["gelu"](layer(norm(y_BLD)))
        scores: Tensor = self.output(self.norms[-1](y_BLD))
        return scores
