"""Word and sentence boundaries in a row of tokens, from tables over the vocabulary."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TokenPieces:
    """What the text of each token tells: five flags for every id.

    A token belongs to the word of the one before it where that one `leads` on and it `follows`: "play" and "ing".
    A sentence ends with a token that `stops` (a full stop) before one that is `spaced`, and with one that `breaks` a
    line.
    """

    leads: Flags
    follows: Flags
    stops: Flags
    spaced: Flags
    breaks: Flags

    def word_starts(self, ids: NDArray[Any]) -> Flags:
        """Tell of each token of a row whether a word begins with it."""
        starts = np.ones(len(ids), dtype=np.bool_)
        starts[1:] = ~(self.leads[ids[:-1]] & self.follows[ids[1:]])
        return starts

    def sentence_ends(self, ids: NDArray[Any]) -> Flags:
        """Tell of each token of a row whether a sentence ends with it; the last token of a row always ends one."""
        ends = self.breaks[ids].copy()
        ends[:-1] |= self.stops[ids[:-1]] & self.spaced[ids[1:]]
        # an empty line belongs to the sentence before it
        ends[:-1] &= ~self.breaks[ids[1:]]
        ends[-1:] = True
        return ends


class LazyPieces(TokenPieces):
    """Tables that are computed when they are first asked for: those of 50,000 tokens take 0.4 s."""

    make: Callable[[], TokenPieces]

    def __init__(self, make: Callable[[], TokenPieces]) -> None:
        # the base is frozen
        object.__setattr__(self, "make", make)

    @functools.cached_property
    def tables(self) -> TokenPieces:
        """The tables themselves."""
        return self.make()

    def word_starts(self, ids: NDArray[Any]) -> Flags:
        return self.tables.word_starts(ids)

    def sentence_ends(self, ids: NDArray[Any]) -> Flags:
        return self.tables.sentence_ends(ids)
