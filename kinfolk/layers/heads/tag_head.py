"""Token heads: tag classification, and start and end of an answer span."""

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import PositiveInt
from kinfolk.core.cost import Cost, linear
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.class_head import JudgingHead
from kinfolk.layers.heads.head import Head, HeadModule
from kinfolk.layers.module import Dims, Dropout, Linear


class TagHead(Head, kind="tag"):
    """Token classification, `n_tags` scores per token (Devlin et al. 2019, section 4.4). Dropout is the model's."""

    n_tags: PositiveInt

    @property
    def n_labels(self) -> int:
        return self.n_tags

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _TagHead(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return linear(dims.d_model, self.n_tags, True)


class _TagHead(HeadModule):
    """Tagging: the tags are a vocabulary, so its loss is that of a language model."""

    def __init__(self, spec: TagHead, dims: Dims) -> None:
        super().__init__()
        self.dropout = Dropout(dims.dropout)
        self.output = Linear(dims.d_model, spec.n_tags, bias=False)
        self.bias = nn.Parameter(torch.zeros(spec.n_tags))

    @property
    def weight(self) -> Tensor:
        return self.output.weight

    def states(self, x_BLD: Tensor) -> Tensor:
        return self.dropout(x_BLD)


class SpanHead(Head, kind="span"):
    """Extractive question answering: scores of answer start and end, [B, L, 2] (Devlin et al. 2019, section 4.2).

    Padding is never part of an answer: its scores are minus infinity.
    """

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return _SpanHead(dims)

    def cost(self, dims: Dims) -> Cost:
        return linear(dims.d_model, 2, True)


class _SpanHead(JudgingHead):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.output = Linear(dims.d_model, 2)

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        scores_BL2: Tensor = self.output(x_BLD)
        # -inf, so that a softmax over positions gives padding exactly 0
        return scores_BL2 if keep_BL is None else scores_BL2.masked_fill(~keep_BL[..., None], float("-inf"))
