"""Siamese (two-tower) classification: labels of two sequences that one model encodes apart."""

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.core.annotations import OtherDocument
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output, State
from kinfolk.objectives.objective import Learning, Vocabulary, real
from kinfolk.objectives.supervised import Classify


class ClassifyApart(Classify, kind="classify-apart"):
    """The class of a pair from what the model says of each alone: no token of one sees the other.

    So texts can be encoded once and compared with many, and twice the length does not cost four times as much: the
    retrieval task of the Long Range Arena is asked in this way (Tay et al. 2021). Its head is `PairHead`.
    """

    @property
    def passes(self) -> int:
        return 2

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if batch.labels is None or batch.source is None:
            raise SpecError(f"objective: {self.kind!r} scores labels of pairs, and this data has none")
        sides = (batch.tokens, batch.keep), (batch.source, batch.source_keep)
        width = max(tokens.shape[1] for tokens, _ in sides)
        # of one width, so that both can run as one batch
        first, second = (
            batch.replace(tokens=_wide(tokens, width), keep=_wide(real(tokens, keep), width), source=None)
            for tokens, keep in sides
        )
        other = OtherDocument(*self._read(super().prepare(second, rng, vocabulary)))
        return super().prepare(first, rng, vocabulary).annotate(other)

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        """Run both sides as one batch: all first sequences, then all second ones."""
        other = batch.annotation(OtherDocument)
        assert other is not None
        assert other.keep_BM is not None
        first, first_keep = self._read(batch)
        twice = torch.cat([batch.index, batch.index])
        tokens, keep = torch.cat([first, other.tokens_BM]), torch.cat([first_keep, other.keep_BM])
        if self.reads == "tokens":
            return learner.model.run(Batch(index=twice, tokens=tokens, keep=keep)), batch
        start = torch.cat([batch.tokens, batch.tokens])
        return learner.model.run(Batch(index=twice, tokens=start, source=tokens, source_keep=keep)), batch

    def _read(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what a prepared batch gives the model to read."""
        if self.reads == "tokens":
            return batch.tokens, batch.keep  # type: ignore[return-value]
        return batch.source, batch.source_keep  # type: ignore[return-value]


def _wide(x: Tensor, width: int) -> Tensor:
    return F.pad(x, (0, width - x.shape[1]))
