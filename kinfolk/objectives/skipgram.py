"""Skip-gram with negative sampling (word2vec, Mikolov et al. 2013)."""

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kinfolk.core.annotations import NegativeSamples
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import NonNegativeFloat, PositiveInt
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output
from kinfolk.objectives.objective import AROUND, Ids, Loss, Objective, Vocabulary, joined, real_rows, side_loss, summed


class SkipGram(Objective, kind="skip-gram"):
    r"""$\log\sigma(u_c \cdot v_w) + \sum_{m=1}^{k} \log\sigma(-u_{c_m} \cdot v_w)$ for each word w and context c.

    Mikolov et al. 2013b, equation 4. Contexts are up to r words away on either side, r drawn from 1 to `window` for
    each word; the k = `n_negative` others are drawn by their counts to the power `power`. Frequent words are left out:
    one that makes up f of the text stays with probability $\sqrt{t/f} + t/f$ for t = `threshold`, as in the released
    code; 0 leaves all in. v is the embedding and u the output layer. A prepared row is its pairs: `tokens` are words,
    `targets` contexts, `candidates` the others.
    """

    window: PositiveInt = 5
    n_negative: PositiveInt = 5
    power: NonNegativeFloat = 0.75
    threshold: NonNegativeFloat = 1e-5

    counts: ClassVar[bool] = True

    @property
    def targets(self) -> str:
        return AROUND

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        tokens, keep = batch.tokens, batch.keep
        if batch.source is not None:
            tokens, keep, _ = joined(batch, vocabulary.sep, vocabulary.pad)
        noise = np.cumsum(self.noise(vocabulary))
        rows = []
        for row, index in zip(real_rows(tokens, keep), batch.index.tolist(), strict=True):
            draw = rng.example(index, "skip-gram")
            words, contexts = self.pairs(row[~vocabulary.is_special[row]], draw, vocabulary)
            others = np.searchsorted(noise, draw.random((len(words), self.n_negative)) * noise[-1], side="right")
            rows.append((words, contexts, others))
        # a row without a pair keeps one that is not scored
        n = max([1, *(len(words) for words, _, _ in rows)])
        made = np.full((len(rows), n), vocabulary.pad), np.full((len(rows), n), IGNORE)
        candidates = np.zeros((len(rows), n, self.n_negative), dtype=np.int64)
        for i, (words, contexts, others) in enumerate(rows):
            made[0][i, : len(words)], made[1][i, : len(words)], candidates[i, : len(words)] = words, contexts, others
        words_BL, targets_BL = (torch.from_numpy(x) for x in made)
        return Batch(
            index=batch.index,
            tokens=words_BL,
            keep=targets_BL != IGNORE,
            targets=targets_BL,
            annotations=(NegativeSamples(torch.from_numpy(candidates)),),
        )

    def pairs(self, row: Ids, draw: np.random.Generator, vocabulary: Vocabulary) -> tuple[Ids, Ids]:
        """Draw which words of a row are left in and how far each looks; return its pairs of word and context."""
        if self.threshold and vocabulary.counts is not None:
            share = vocabulary.counts[row] / max(1, int(vocabulary.counts[vocabulary.ordinary].sum()))
            # a word that was never counted is always kept, without a division by zero
            ratio = self.threshold / np.maximum(share, 1e-30)
            row = row[draw.random(len(row)) < np.sqrt(ratio) + ratio]
        reach = draw.integers(1, self.window + 1, len(row))
        at = np.arange(len(row))
        away = np.concatenate([np.arange(-self.window, 0), np.arange(1, self.window + 1)])
        there = at[:, None] + away
        seen = (np.abs(away) <= reach[:, None]) & (there >= 0) & (there < len(row))
        return np.broadcast_to(row[:, None], there.shape)[seen], row[there[seen]]

    def noise(self, vocabulary: Vocabulary) -> NDArray[np.float64]:
        """Return how likely each id is drawn as an other word, up to a factor; specials never are."""
        counts = np.ones(vocabulary.size) if vocabulary.counts is None else vocabulary.counts.astype(np.float64)
        return np.where(vocabulary.is_special, 0.0, counts**self.power)

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.targets is not None
        # the vectors of all others are many times the states: they are looked up again instead of kept
        losses = checkpoint(_losses, output.hidden, output.head.weight, batch, use_reentrant=False)
        real = batch.targets != IGNORE
        return Loss(losses.masked_fill(~real, 0.0).sum(), real.sum(), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        assert batch.targets is not None
        return {"skip-gram": summed(_losses(output.hidden, output.head.weight, batch), batch.targets != IGNORE)}


def _losses(x_BLD: Tensor, weight_VD: Tensor, batch: Batch) -> Tensor:
    """Return the loss of every pair: [B, L]."""
    assert batch.targets is not None
    negatives = batch.annotation(NegativeSamples)
    assert negatives is not None
    right_BL = (x_BLD * F.embedding(batch.targets.clamp(min=0), weight_VD)).sum(-1)
    wrong_BLC = (F.embedding(negatives.tokens_BLC, weight_VD) @ x_BLD.unsqueeze(-1)).squeeze(-1)
    return -F.logsigmoid(right_BL) - F.logsigmoid(-wrong_BLC).sum(-1)
