"""Passages of one document each, and beside each a passage of another, for next sentence prediction.

A window of the stream is narrowed to the longest part of it that lies in one document, so that nothing has to be
known about all documents at once, and every epoch cuts them at other places.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.splits.split import TextSplit

Ids = NDArray[Any]


def passage(text: TextSplit, start: int, width: int) -> tuple[Ids, int]:
    """Return the longest part of a window that lies in one document, without `bos` and `eos`, and where it begins."""
    bounds = [0, *text.begins(start, width).tolist(), width]
    sizes = np.diff(bounds)
    longest = int(sizes.argmax())
    ids = text.window((start + bounds[longest]) % text.n_tokens, int(sizes[longest]))
    return _bare(text, ids), (start + bounds[longest]) % text.n_tokens


def elsewhere(text: TextSplit, place: int, width: int, draw: np.random.Generator) -> Ids:
    """Return up to `width` tokens from anywhere in another document than the one at `place`."""
    if len(text) < 2:
        raise DataError(
            f"the {text.name} part has one document; two or more are needed for passages of "
            "another one; give more text, or a longer file to validate on"
        )
    other = int(draw.integers(len(text) - 1))
    first, last = text.bounds(other + (other >= text.document_at(place)))
    start = first + int(draw.integers(max(1, last - first - width + 1)))
    return _bare(text, text.window(start, min(width, last - start)))


def _bare(text: TextSplit, ids: Ids) -> Ids:
    outside = (ids == text.tokenizer.bos) | (ids == text.tokenizer.eos)
    return ids[~outside]
