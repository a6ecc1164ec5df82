"""Axis Noise: what may happen to a text before an encoder reads it (Lewis et al. 2020, section 2.2).

Each is a function of one row of token ids and a generator of its own. Special tokens are neither hidden nor lost.
"""

import math

import numpy as np

from kinfolk.core.bounds import Inside, PositiveFloat, Probability
from kinfolk.core.spec import Spec
from kinfolk.objectives.corruption import Row, ordinary_places
from kinfolk.objectives.masked import Unit
from kinfolk.objectives.objective import Vocabulary


class Noise(Spec):
    """Axis: how a denoising objective corrupts a text: `apply(row, draw, vocabulary) -> row`, of any length."""

    def apply(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Row:
        """Return another row."""
        raise NotImplementedError


class Masking(Noise, kind="mask"):
    """Show each token as [MASK] with probability `share`, and `as_random` of those as any token instead.

    T5 has 0.1 for the latter in what it calls BERT-style, and none that stay as they are (Raffel et al. 2020).
    """

    share: Inside = 0.15
    as_random: Probability = 0.0

    def apply(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Row:
        places, out = ordinary_places(row, vocabulary), row.copy()
        hidden = places[draw.random(len(places)) < self.share]
        out[hidden] = _masks(len(hidden), self.as_random, draw, vocabulary)
        return out


class Deletion(Noise, kind="delete"):
    """Lose each token with probability `share`: where something is missing is for the decoder to find out."""

    share: Inside = 0.15

    def apply(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Row:
        places = ordinary_places(row, vocabulary)
        return np.delete(row, places[draw.random(len(places)) < self.share])


class Infilling(Noise, kind="infill"):
    """Put one [MASK] in the place of each of some spans, whose lengths are Poisson with mean `mean_span`.

    Lengths are drawn until they make up ceil(share * units), the last is cut, so that exactly that number is lost; a
    `unit` is a "word" or a "token". A span of length 0 puts a [MASK] where nothing is missing. Spans lie anywhere
    without overlap, all ways as likely; the released code lets them overlap and so loses fewer. `as_random` of the
    masks are shown as any token.
    """

    share: Inside = 0.3
    mean_span: PositiveFloat = 3.0
    unit: Unit = "word"
    as_random: Probability = 0.0

    def apply(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Row:
        places = ordinary_places(row, vocabulary)
        if not len(places):
            return row
        unit = vocabulary.words(row)[places] if self.unit == "word" else places
        unit = np.unique(unit, return_inverse=True)[1]
        n_units = int(unit.max()) + 1
        lengths, n_empty = self.lengths(math.ceil(self.share * n_units), draw)
        span = np.full(n_units, -1)
        spans = np.repeat(np.arange(len(lengths)), lengths)
        span[
            np.repeat(_firsts(n_units, lengths, draw) - np.cumsum(lengths) + lengths, lengths) + np.arange(len(spans))
        ] = spans
        of_token = span[unit]
        lost = places[of_token >= 0]
        firsts = lost[np.unique(of_token[of_token >= 0], return_index=True)[1]]
        out, keep = row.copy(), np.ones(len(row), dtype=bool)
        out[firsts] = _masks(len(firsts), self.as_random, draw, vocabulary)
        keep[lost], keep[firsts] = False, True
        out = out[keep]
        where = draw.integers(0, len(out) + 1, n_empty)
        return np.insert(out, where, _masks(n_empty, self.as_random, draw, vocabulary))

    def lengths(self, budget: int, draw: np.random.Generator) -> tuple[Row, int]:
        """Draw the lengths of spans that lose `budget` units together, and how many empty ones came along."""
        drawn = draw.poisson(self.mean_span, 0)
        while drawn.sum() < budget:
            more = draw.poisson(self.mean_span, 8 + math.ceil(budget / self.mean_span))
            drawn = np.concatenate([drawn, more])
        total = np.cumsum(drawn)
        n = int(np.searchsorted(total, budget)) + 1
        drawn, over = drawn[:n], total[n - 1] - budget
        drawn[-1] -= over
        return drawn[drawn > 0], int((drawn == 0).sum())


def _firsts(n: int, lengths: Row, draw: np.random.Generator) -> Row:
    """Draw where spans begin among n units: one of the ways to put the others before, between and after them."""
    free = n - int(lengths.sum())
    # stars and bars: which of the free units and the spans, in a row, are the spans
    bars = np.sort(draw.permutation(free + len(lengths))[: len(lengths)])
    return bars + np.cumsum(lengths - 1) - (lengths - 1)


class Permutation(Noise, kind="permute-sentences"):
    """Put `share` of the sentences, rounded up, into any order among themselves.

    A full stop ends a sentence, and so does a line; without a tokenizer that knows them, a document is one.
    """

    share: Probability = 1.0

    def apply(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Row:
        ends = vocabulary.is_special[row]
        if vocabulary.pieces is not None:
            ends = ends | vocabulary.pieces.sentence_ends(row)
        sentences = [part for part in np.split(row, np.flatnonzero(ends) + 1) if len(part)]
        moved = np.sort(draw.permutation(len(sentences))[: math.ceil(self.share * len(sentences))])
        order = np.arange(len(sentences))
        order[moved] = draw.permutation(moved)
        return np.concatenate([sentences[i] for i in order]) if sentences else row


class Rotation(Noise, kind="rotate"):
    """With probability `share`, let the text begin at any of its tokens and end with the one before."""

    share: Probability = 1.0

    def apply(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Row:
        lot, first = draw.random(), int(draw.integers(0, max(1, len(row))))
        return np.roll(row, -first) if lot < self.share else row


class Shuffling(Noise, kind="shuffle"):
    """All tokens in any order (Raffel et al. 2020, deshuffling)."""

    def apply(self, row: Row, draw: np.random.Generator, vocabulary: Vocabulary) -> Row:
        return draw.permutation(row)


def _masks(n: int, as_random: float, draw: np.random.Generator, vocabulary: Vocabulary) -> Row:
    """Return what is shown in the place of n things that are hidden."""
    other = draw.choice(vocabulary.ordinary, n)
    return np.where(draw.random(n) < as_random, other, vocabulary.mask)
