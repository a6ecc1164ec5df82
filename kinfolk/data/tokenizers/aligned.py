"""Token offsets: the characters of each token, for labels that are given in characters or words."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.tokenizers.tokenizer import Tokenizer

Places = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Aligned:
    """The ids of a text, and the characters of each: from `starts` to before `stops`.

    Both never fall. A token of a byte-level tokenizer takes the space before a word along, and several tokens may be
    for one character.
    """

    ids: NDArray[Any]
    starts: Places
    stops: Places

    def __len__(self) -> int:
        return len(self.ids)

    def tokens(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first and the last token of characters; where no token has any of them, first is after last."""
        return int(np.searchsorted(self.stops, start, "right")), int(np.searchsorted(self.starts, stop, "left")) - 1

    def characters(self, first: int, last: int, text: str) -> tuple[int, int]:
        """Return the characters of tokens, without the spaces around them."""
        start, stop = int(self.starts[first]), int(self.stops[last])
        inside = text[start:stop]
        return start + len(inside) - len(inside.lstrip()), stop - (len(inside) - len(inside.rstrip()))


def aligned(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Aligned]:
    """Return texts as `encode_batch` does, with places."""
    ids = tokenizer.encode_batch(texts)
    if tokenizer.kind == "byte":
        return [_of_bytes(x, text) for x, text in zip(ids, texts, strict=True)]
    if tokenizer.kind == "char":
        return [Aligned(x, np.arange(len(x)), np.arange(1, len(x) + 1)) for x in ids]
    return [_of_pieces(tokenizer, x, text) for x, text in zip(ids, texts, strict=True)]


def _of_bytes(ids: NDArray[Any], text: str) -> Aligned:
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    sizes = 1 + (points > 0x7F).astype(np.int64) + (points > 0x7FF) + (points > 0xFFFF)
    starts = np.repeat(np.arange(len(points)), sizes)
    return Aligned(ids, starts, starts + 1)


def _of_pieces(tokenizer: Tokenizer, ids: NDArray[Any], text: str) -> Aligned:
    tokens, places, base = [], [], 0
    for part in tokenizer.parts(text):
        coded = tokenizer.inner.encode(part, add_special_tokens=False)
        tokens += coded.ids
        places += [(base + start, base + stop) for start, stop in coded.offsets]
        base += len(part)
    if not np.array_equal(tokens, ids):
        raise DataError(f"the tokenizer writes {text[:40]!r} in two ways; its tokens cannot be placed in a text")
    both = np.array(places, np.int64).reshape(-1, 2)
    # a normaliser that moves characters may send places back a little, and searching needs an order
    starts, stops = np.maximum.accumulate(both[:, 0]), np.maximum.accumulate(both[:, 1])
    return Aligned(ids, starts, np.maximum(starts, stops))
