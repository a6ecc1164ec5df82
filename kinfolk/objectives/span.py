"""Predict the spans that are missing from a text (Raffel et al. 2020, section 3.1.4)."""

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output
from kinfolk.objectives.objective import Objective, Vocabulary, joined, summed

CLOSINGS = ("sentinel", "none")


class SpanCorruption(Objective, kind="span-corruption"):
    """Put a sentinel in the place of each of some spans; the target is the sentinels, each before what it stands for.

    A window of n tokens loses round(share * n) of them in round(lost / mean_span) spans; how long they and the gaps
    between them are is drawn evenly from all ways to divide the tokens. A text begins with a gap and ends with a span,
    as the released code has it. Sentinel k is the last id but k of a vocabulary that goes on for `n_sentinels` ids
    after the data's own. `closing` "sentinel" ends the target with one more, as in the paper; "none" as in its code.
    """

    share: float = 0.15
    mean_span: float = 3.0
    n_sentinels: int = 100
    closing: str = "sentinel"

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise SpecError(f"share: {self.share} is not allowed; it is a share of the tokens, between 0 and 1")
        if not self.mean_span >= 1:
            raise SpecError(f"mean_span: {self.mean_span} is not allowed; a span has at least one token")
        if self.n_sentinels < 2:
            raise SpecError(f"n_sentinels: {self.n_sentinels} is not allowed; one span and the end take two")
        if self.closing not in CLOSINGS:
            raise SpecError(f"closing: unknown {self.closing!r}{suggest(self.closing, CLOSINGS)}")

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        tokens, keep = batch.tokens[:, :-1], None if batch.keep is None else batch.keep[:, :-1]
        if batch.source is not None:
            tokens, keep, _ = joined(batch, vocabulary.sep, vocabulary.pad)
        sources, targets = [], []
        for i, index in enumerate(batch.index.tolist()):
            row = (tokens[i] if keep is None else tokens[i][keep[i]]).numpy()
            lost = self.lost(len(row), rng.example(index, "span"))
            source, target = self.divide(row, lost, vocabulary)
            sources.append(source)
            targets.append(target)
        source_BM, source_keep = _padded(sources, vocabulary.pad)
        target_BL, target_keep = _padded(targets, vocabulary.pad)
        opening = torch.full_like(target_BL[:, :1], vocabulary.bos)
        return Batch(
            index=batch.index,
            source=source_BM,
            source_keep=source_keep,
            tokens=torch.cat([opening, target_BL[:, :-1]], 1),
            # the target is shifted by one, so what is read is real where what is predicted is
            keep=target_keep,
            targets=target_BL if target_keep is None else target_BL.masked_fill(~target_keep, IGNORE),
        )

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        assert batch.targets is not None
        losses = output.head.losses(output.hidden, batch.targets)
        return {"span-token": summed(losses, batch.targets != IGNORE)}

    def lost(self, n: int, draw: np.random.Generator) -> np.ndarray:
        """Draw which of n tokens are lost: gap, span, gap, span, …"""
        if n < 2:
            return np.zeros(n, dtype=bool)
        n_lost = min(max(round(self.share * n), 1), n - 1)
        n_spans = min(max(round(n_lost / self.mean_span), 1), n_lost, n - n_lost)
        lengths = np.empty(2 * n_spans, dtype=np.int64)
        lengths[0::2] = _compose(n - n_lost, n_spans, draw)
        lengths[1::2] = _compose(n_lost, n_spans, draw)
        return np.repeat(np.arange(2 * n_spans) % 2 == 1, lengths)

    def divide(self, row: np.ndarray, lost: np.ndarray, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
        """Return what is left with sentinels in it, and what is lost with sentinels before it; both end with eos."""
        begins = lost & ~np.concatenate([[False], lost[:-1]])
        n_used = int(begins.sum()) + (self.closing == "sentinel")
        if n_used > self.n_sentinels:
            raise SpecError(
                f"objective.n_sentinels: {self.n_sentinels} are too few for {len(row)} tokens, which take {n_used}"
            )
        sentinel = vocabulary.size + self.n_sentinels - np.cumsum(begins)
        # a sentinel and the first token of its span stand at the same place, the sentinel first
        source = np.where(begins, sentinel, row)[~lost | begins]
        spaced = np.stack([sentinel, row], 1)[np.stack([begins, lost], 1)]
        last = [vocabulary.size + self.n_sentinels - n_used] if self.closing == "sentinel" else []
        return np.append(source, vocabulary.eos), np.concatenate([spaced, last, [vocabulary.eos]]).astype(row.dtype)


def _compose(n: int, k: int, draw: np.random.Generator) -> np.ndarray:
    """Draw one of the ways to write n as a sum of k positive numbers, all as likely."""
    cuts = np.sort(draw.permutation(n - 1)[: k - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [n]]))


def _padded(rows: list[np.ndarray], pad: int) -> tuple[Tensor, Tensor | None]:
    """Stack rows, padded on the right where they differ in length, and say which tokens are real; None: all."""
    lengths = np.array([len(row) for row in rows])
    longest = int(lengths.max())
    out = np.full((len(rows), longest), pad, dtype=rows[0].dtype)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    keep = None if (lengths == longest).all() else torch.from_numpy(np.arange(longest) < lengths[:, None])
    return torch.from_numpy(out), keep
