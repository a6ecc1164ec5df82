"""Predict hidden tokens from both sides (Devlin et al. 2019)."""

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output
from kinfolk.objectives.objective import Objective, Vocabulary, joined, summed


class MaskedLM(Objective, kind="masked"):
    """Choose `share` of the tokens; show most of them as [MASK], some as another token, some as they are.

    The number chosen is exact, max(1, round(share * tokens)), special tokens are never chosen (Devlin et al. 2019,
    section 3.1 and the released code); drawn anew for every example that is read.
    """

    share: float = 0.15
    as_mask: float = 0.8
    as_random: float = 0.1

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        tokens, keep = batch.tokens[:, :-1], None if batch.keep is None else batch.keep[:, :-1]
        if batch.source is not None:
            tokens, keep, _ = joined(batch, vocabulary.sep, vocabulary.pad)
        rows = tokens.numpy().copy()
        targets = np.full_like(rows, IGNORE)
        for row, target, index in zip(rows, targets, batch.index.tolist(), strict=True):
            self._corrupt(row, target, rng.example(index, "masked"), vocabulary)
        return Batch(index=batch.index, tokens=torch.from_numpy(rows), keep=keep, targets=torch.from_numpy(targets))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        assert batch.targets is not None
        losses = output.head.losses(output.hidden, batch.targets)
        return {"masked-token": summed(losses, batch.targets != IGNORE)}

    def _corrupt(self, row: np.ndarray, target: np.ndarray, draw: np.random.Generator, vocabulary: Vocabulary) -> None:
        """Hide tokens of one row in place and write down what they were."""
        candidates = np.flatnonzero(row >= vocabulary.n_special)
        n = min(len(candidates), max(1, round(self.share * len(candidates))))
        chosen = draw.permutation(candidates)[:n]
        target[chosen] = row[chosen]
        lot = draw.random(n)
        other = draw.integers(vocabulary.n_special, vocabulary.size, n)
        row[chosen[lot < self.as_mask]] = vocabulary.mask
        swapped = (lot >= self.as_mask) & (lot < self.as_mask + self.as_random)
        row[chosen[swapped]] = other[swapped]
