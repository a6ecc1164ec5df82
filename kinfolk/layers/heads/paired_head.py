"""Masked-token and sentence-pair heads together, as BERT and ALBERT are pre-trained."""

import dataclasses
from typing import Annotated

from torch import Tensor

from kinfolk.core.bounds import Bounds
from kinfolk.core.cost import Cost
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.heads.head import HeadModule, MaskedLMHead, MaskedLMHeadModule
from kinfolk.layers.module import Dims


class PairedHead(MaskedLMHead, kind="masked-lm-and-pair"):
    """Masked-LM head and pair classification: `n_classes` classes of the first state through a tanh layer.

    The pooler and the next-sentence classifier of Devlin et al. 2019, section 3.1 and its released code.
    """

    n_classes: Annotated[int, Bounds(2)] = 2

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return PairedHeadModule(self, dims, embedding)

    def cost(self, dims: Dims) -> Cost:
        # the class is one of a whole row: its parameters count, its operations are nothing beside those of the tokens
        return super().cost(dims) + Cost(params=_judge(self).cost(dims).params)


def _judge(spec: PairedHead) -> ClassHead:
    return ClassHead(n_classes=spec.n_classes, pool="first", activation="tanh")


class PairedHeadModule(MaskedLMHeadModule):
    """Masked-LM head with a classifier of sentence pairs."""

    def __init__(self, spec: PairedHead, dims: Dims, embedding: EmbeddingModule) -> None:
        super().__init__(spec, dims, embedding)
        # no dropout between pooler and classifier, as in the released code
        self.judge = _judge(spec).build(dataclasses.replace(dims, dropout=0.0), embedding)

    def pair(self, x_BLD: Tensor) -> Tensor:
        """Score the classes of each row: [B, C]."""
        return self.judge.answer(x_BLD, None)
