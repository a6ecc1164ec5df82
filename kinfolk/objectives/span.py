"""Span corruption with sentinel tokens (T5, Raffel et al. 2020, section 3.1.4)."""

from typing import Annotated, ClassVar, Literal

import numpy as np

from kinfolk.core.bounds import Bounds, Inside
from kinfolk.core.errors import SpecError
from kinfolk.objectives.corruption import Corruption, Halves, Row, ended
from kinfolk.objectives.objective import Vocabulary


class SpanCorruption(Corruption, kind="span-corruption"):
    """Put a sentinel in the place of each of some spans; the target is the sentinels, each before the span it replaces.

    With `noise` "spans" a window of n tokens loses round(share * n) of them in round(lost / mean_span) spans; how long
    they and the gaps between them are is drawn evenly from all ways to divide the tokens. A text begins with a gap and
    ends with a span, as the released code has it. With "tokens" each token is lost with probability `share`, and
    neighbours that are lost are one span.

    Sentinel k is the last id but k of a vocabulary that goes on for `n_sentinels` ids after the data's own. `closing`
    "sentinel" ends the target with one more, as in the paper; "code" writes what the released code does: a sentinel
    for each run of tokens that were kept, which of drawn spans leaves the last one out ("none") and shifts the
    names by one where a text begins with a lost token.
    """

    share: Inside = 0.15
    mean_span: Annotated[float, Bounds(1)] = 3.0
    n_sentinels: Annotated[int, Bounds(2)] = 100
    closing: Literal["sentinel", "none", "code"] = "sentinel"
    noise: Literal["spans", "tokens"] = "spans"

    measured: ClassVar[str] = "span-token"
    whole: ClassVar[bool] = False

    @property
    def extra_ids(self) -> int:
        return self.n_sentinels

    def divide(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Halves:
        lost = self.lost(len(row), draw)
        if self.closing == "code":
            return Halves(self._folded(row, lost, vocabulary), self._folded(row, ~lost, vocabulary))
        return self.split(row, lost, vocabulary)

    def lost(self, n: int, draw: np.random.Generator) -> Row:
        """Draw which of n tokens are lost: gap, span, gap, span, …, or each for itself."""
        if n < 2:
            return np.zeros(n, dtype=bool)
        if self.noise == "tokens":
            return self._within_names(draw.random(n) < self.share)
        n_lost = min(max(round(self.share * n), 1), n - 1)
        n_spans = min(max(round(n_lost / self.mean_span), 1), n_lost, n - n_lost)
        lengths = np.empty(2 * n_spans, dtype=np.int64)
        lengths[0::2] = _compose(n - n_lost, n_spans, draw)
        lengths[1::2] = _compose(n_lost, n_spans, draw)
        return np.repeat(np.arange(2 * n_spans) % 2 == 1, lengths)

    def split(self, row: Row, lost: Row, vocabulary: Vocabulary) -> Halves:
        """Return what is left with sentinels in it, and what is lost with sentinels before it; both end with eos."""
        begins = _begins(lost)
        n_used = int(begins.sum()) + (self.closing == "sentinel")
        self._check(n_used, len(row))
        sentinel = vocabulary.size + self.n_sentinels - np.cumsum(begins)
        # a sentinel and the first token of its span share a position, the sentinel first
        source = np.where(begins, sentinel, row)[~lost | begins]
        spaced = np.stack([sentinel, row], 1)[np.stack([begins, lost], 1)]
        last = [vocabulary.size + self.n_sentinels - n_used] if self.closing == "sentinel" else []
        return Halves(ended(source, vocabulary), np.concatenate([spaced, last, [vocabulary.eos]]).astype(row.dtype))

    def _folded(self, row: Row, away: Row, vocabulary: Vocabulary) -> Row:
        """Return a row with each run of some tokens folded into one sentinel, numbered in their order."""
        begins = _begins(away)
        self._check(int(begins.sum()), len(row))
        sentinel = vocabulary.size + self.n_sentinels - np.cumsum(begins)
        return ended(np.where(begins, sentinel, row)[~away | begins], vocabulary)

    def _within_names(self, lost: Row) -> Row:
        """Leave the last runs as they were where chance makes more of them than there are sentinels."""
        expected = len(lost) * self.share * (1 - self.share) + 2
        self._check(int(expected), len(lost))
        # one name may be needed for the end, or for the kept tokens before the first run
        return lost & (np.cumsum(_begins(lost)) < self.n_sentinels - 1)

    def _check(self, n_used: int, n: int) -> None:
        if n_used > self.n_sentinels:
            raise SpecError(
                f"objective.n_sentinels: {self.n_sentinels} are too few for {n} tokens, which take {n_used}"
            )


def _begins(flags: Row) -> Row:
    """Return where runs of true flags begin."""
    return flags & ~np.concatenate([[False], flags[:-1]])


def _compose(n: int, k: int, draw: np.random.Generator) -> Row:
    """Draw one of the ways to write n as a sum of k positive numbers, all as likely."""
    cuts = np.sort(draw.permutation(n - 1)[: k - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [n]]))
