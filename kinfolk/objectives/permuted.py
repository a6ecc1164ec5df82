"""Permutation language modelling (XLNet, Yang et al. 2019)."""

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.core.annotations import Continuation, Visible
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import Fraction, PositiveInt
from kinfolk.core.rng import Rng
from kinfolk.objectives.masked import MaskedLM, Unit
from kinfolk.objectives.objective import PERMUTED, Ids, Vocabulary, joined


class PermutedLM(MaskedLM, kind="permuted"):
    r"""$\max \mathbb{E}_z \sum_{t > c} \log p(x_{z_t} \mid x_{z_{<t}})$ (section 2.2 and 2.3).

    A `share` of the tokens, runs of up to `longest` words, is predicted in random order: the last part of an order in
    which everything else comes first, in no order of its own. The content stream of a position sees the positions up
    to itself in the order, its question those before it only; questions follow the content in the row, have the
    positions they ask about and have the embedding of [MASK]. All content is shown as it is, so that later targets
    know earlier ones.

    A row is `A [SEP] B [SEP] [CLS]` of a window of text, cut where a sentence ends, so that both kinds of segments are
    met. Every token of the text is read once, whole windows, so that rows go on where the last batch ended and a model
    that remembers segments has what came before.
    """

    share: Fraction = 1 / 6
    unit: Unit = "word"
    longest: PositiveInt = 5

    measured: ClassVar[str] = "permuted-token"

    @property
    def targets(self) -> str:
        return PERMUTED

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        tokens, keep, segments = self._rows(batch, rng, vocabulary)
        ranks = np.full(tokens.shape, -1, dtype=np.int64)
        for row, rank, index in zip(tokens, ranks, batch.index.tolist(), strict=True):
            draw = rng.example(index, "permuted")
            chosen = self.choose(row, draw, vocabulary)
            rank[chosen] = draw.permutation(len(chosen))
        streams = two_streams(torch.from_numpy(tokens), torch.from_numpy(ranks), vocabulary.mask, vocabulary.pad)
        at, asks = streams["positions"], streams["asks"]
        if keep is not None:
            asks = torch.cat([torch.from_numpy(keep), asks[:, tokens.shape[1] :]], 1)
        continues = batch.annotation(Continuation)
        return Batch(
            index=batch.index,
            tokens=streams["tokens"],
            targets=streams["targets"],
            positions=at,
            keep=None if bool(asks.all()) else asks,
            segments=torch.from_numpy(segments).gather(1, at),
            annotations=(Visible(streams["visible"]), *(() if continues is None else (continues,))),
        )

    def _rows(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> tuple[Ids, NDArray[np.bool_] | None, Ids]:
        """Return rows as the content stream reads them, which tokens are real (None: all), and segments."""
        if batch.source is not None:
            pair, real, is_target = joined(batch, vocabulary.sep, vocabulary.pad)
            return pair.numpy(), real.numpy(), is_target.long().numpy()
        rows = batch.tokens[:, :-1].numpy()
        lengths = np.full(len(rows), rows.shape[1]) if batch.keep is None else batch.keep[:, :-1].sum(1).numpy()
        tokens = np.full((len(rows), rows.shape[1] + 3), vocabulary.pad, dtype=np.int64)
        segments = np.zeros_like(tokens)
        for i, (index, n) in enumerate(zip(batch.index.tolist(), lengths.tolist(), strict=True)):
            # a row of a validation stream that has ended has nothing to cut
            cut = _cut(rows[i, :n], rng.example(index, "cut"), vocabulary) if n else 0
            ends = [vocabulary.sep], [vocabulary.sep, vocabulary.cls]
            tokens[i, : n + 3] = np.concatenate([rows[i, :cut], ends[0], rows[i, cut:n], ends[1]])
            # the last token belongs to neither
            segments[i, cut + 1 : n + 2], segments[i, n + 2 : n + 3] = 1, 2
        keep = np.arange(tokens.shape[1]) < lengths[:, None] + 3
        return tokens, None if keep.all() else keep, segments


def two_streams(tokens_BL: Tensor, rank_BL: Tensor, mask: int, pad: int) -> dict[str, Tensor]:
    """Write content and questions in one row, from the rank of each token in the order, -1 of those not predicted.

    Returned are `tokens`, `targets`, `positions`, `visible` [B, L + Q, L], and `asks`, false where a row has fewer
    questions than another. A position i sees j if j is not predicted, or comes before it in the order; content sees
    itself as well.
    """
    n_asked_B = (rank_BL >= 0).sum(1)
    n, q = tokens_BL.shape[1], int(n_asked_B.max())
    # positions of targets first, in the order of the text
    at_BQ = (rank_BL < 0).to(torch.uint8).sort(dim=1, stable=True).indices[:, :q]
    real_BQ = torch.arange(q) < n_asked_B[:, None]
    content_BLL = rank_BL.unsqueeze(1) <= rank_BL.unsqueeze(2)
    asked_BQ = rank_BL.gather(1, at_BQ)
    question_BQL = rank_BL.unsqueeze(1) < asked_BQ.unsqueeze(2)
    none_BL = torch.full_like(tokens_BL, IGNORE)
    targets_BQ = tokens_BL.gather(1, at_BQ).masked_fill(~real_BQ, IGNORE)
    questions_BQ = torch.full_like(at_BQ, mask).masked_fill(~real_BQ, pad)
    return {
        "tokens": torch.cat([tokens_BL, questions_BQ], 1),
        "targets": torch.cat([none_BL, targets_BQ], 1),
        "positions": torch.cat([torch.arange(n).expand_as(tokens_BL), at_BQ], 1),
        "visible": torch.cat([content_BLL, question_BQL], 1),
        "asks": torch.cat([torch.ones_like(tokens_BL, dtype=torch.bool), real_BQ], 1),
    }


def _cut(row: Ids, draw: np.random.Generator, vocabulary: Vocabulary) -> int:
    """Return where a window is cut in two: after a sentence if it has two, else anywhere."""
    places = np.arange(1, len(row))
    if vocabulary.pieces is not None:
        places = np.flatnonzero(vocabulary.pieces.sentence_ends(row))[:-1] + 1
    places = places if len(places) else np.arange(1, max(2, len(row)))
    return int(places[draw.integers(len(places))])
