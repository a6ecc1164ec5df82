"""Masked language modelling (BERT, Devlin et al. 2019)."""

from typing import ClassVar, Literal

import numpy as np
import torch

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import Fraction, PositiveInt, Probability
from kinfolk.core.rng import Rng
from kinfolk.objectives.objective import Ids, Objective, Vocabulary, texts

Unit = Literal["token", "word"]


class MaskedLM(Objective, kind="masked"):
    """Choose `share` of the tokens; show most of them as [MASK], some as another token, some as they are.

    The number chosen is exact, max(1, round(share * tokens)), special tokens are never chosen (Devlin et al. 2019,
    section 3.1 and the released code); drawn anew for every example that is read. `unit` "word" chooses all tokens of a
    word or none; what would exceed the number is passed over. `longest` n chooses runs of 1 to n neighbouring units, a
    run of k as likely as 1/k (Lan et al. 2020, section 4.1).
    """

    share: Fraction = 0.15
    as_mask: Probability = 0.8
    as_random: Probability = 0.1
    unit: Unit = "token"
    longest: PositiveInt = 1

    measured: ClassVar[str] = "masked-token"

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        tokens, keep = texts(batch, vocabulary)
        return self.hidden(Batch(index=batch.index, tokens=tokens, keep=keep), rng, vocabulary)

    def hidden(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        """Hide tokens of a batch whose rows are as a model reads them, and make them its targets."""
        rows = batch.tokens.numpy().copy()
        targets = np.full_like(rows, IGNORE)
        for row, target, index in zip(rows, targets, batch.index.tolist(), strict=True):
            self._corrupt(row, target, rng.example(index, "masked"), vocabulary)
        return batch.replace(tokens=torch.from_numpy(rows), targets=torch.from_numpy(targets))

    def choose(self, row: Ids, draw: np.random.Generator, vocabulary: Vocabulary) -> Ids:
        """Draw which positions of a row are predicted."""
        candidates = np.flatnonzero(~vocabulary.is_special[row])
        n = min(len(candidates), max(1, round(self.share * len(candidates))))
        if self.unit == "token" and self.longest == 1:
            return draw.permutation(candidates)[:n]
        words = (
            vocabulary.words(row) if self.unit == "word" else np.where(vocabulary.is_special[row], -1, range(len(row)))
        )
        # where each unit begins, and the end of the last; specials lie between units and belong to none
        begins = candidates[np.diff(words[candidates], prepend=-1) != 0]
        sizes = np.diff(np.searchsorted(candidates, begins), append=len(candidates))
        return self._runs(begins, sizes, n, draw)

    def _runs(self, begins: Ids, sizes: Ids, n: int, draw: np.random.Generator) -> Ids:
        """Take runs of units until `n` tokens are taken or nothing fits any more."""
        if not len(begins):
            return begins
        odds = 1.0 / np.arange(1, self.longest + 1)
        lengths = (1 + draw.choice(self.longest, len(begins), p=odds / odds.sum())).tolist()
        # plain numbers: this loop runs for every word of every row
        free, left, size_of = [True] * len(begins), n, sizes.tolist()
        first, end = begins.tolist(), (begins + sizes).tolist()
        for unit in draw.permutation(len(begins)).tolist():
            # a run that does not fit is tried shorter, as the released code does
            for length in range(min(lengths[unit], len(first) - unit), 0, -1):
                stop, size = unit + length, sum(size_of[unit : unit + length])
                # a run does not reach across a special
                if size <= left and size == end[stop - 1] - first[unit] and all(free[unit:stop]):
                    free[unit:stop], left = [False] * length, left - size
                    break
            if not left:
                break
        taken = ~np.array(free)
        if not taken.any():
            # every word is longer than the number asks for; nothing to predict would be worse
            taken[sizes.argmin()] = True
        return np.concatenate([np.arange(b, b + s) for b, s in zip(begins[taken], sizes[taken], strict=True)])

    def _corrupt(self, row: Ids, target: Ids, draw: np.random.Generator, vocabulary: Vocabulary) -> None:
        """Hide tokens of one row in place and write down what they were."""
        chosen = self.choose(row, draw, vocabulary)
        n = len(chosen)
        target[chosen] = row[chosen]
        lot = draw.random(n)
        other = vocabulary.ordinary[draw.integers(0, len(vocabulary.ordinary), n)]
        row[chosen[lot < self.as_mask]] = vocabulary.mask
        swapped = (lot >= self.as_mask) & (lot < self.as_mask + self.as_random)
        row[chosen[swapped]] = other[swapped]
