"""Unknown tokens: warn of text that turns into many of them."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.splits.split import Data
from kinfolk.data.tokenizers.tokenizer import Tokenizer

SHARE = 0.01
"""Fewer unknown tokens than this are rare characters, which every vocabulary lacks some of."""
SAMPLED, AROUND = 2000, 20


class UnknownTokens(UserWarning):
    """A text has many tokens that a vocabulary lacks."""


def warn_of_unknown(tokenizer: Tokenizer, sequences: Sequence[NDArray[Any]], where: str) -> None:
    """Warn if many ids of sequences are unknown, with their share and the text around the first of them."""
    # GPT-2 names the end of a text as its unknown token, because bytes leave nothing unknown
    if tokenizer.kind == "byte" or tokenizer.special_ids.count(tokenizer.unk) > 1 or not sequences:
        return
    unknown = [np.asarray(ids) == tokenizer.unk for ids in sequences]
    n, total = sum(int(x.sum()) for x in unknown), sum(map(len, sequences))
    if n <= SHARE * total:
        return
    which = next(i for i, x in enumerate(unknown) if x.any())
    at = int(unknown[which].argmax())
    example = tokenizer.decode(sequences[which][max(0, at - AROUND) : at + AROUND], specials=True)
    name = tokenizer.inner.id_to_token(tokenizer.unk)
    text = (
        f"{where}: {n:,} of {total:,} tokens ({n / total:.1%}) are unknown to the tokenizer ({name}), as in {example!r}"
    )
    warnings.warn(text, UnknownTokens, stacklevel=3)


def warn_of_data(data: Data) -> Data:
    """Look at the first examples of each split, and return the data."""
    for name, split in data.splits.items():
        warn_of_unknown(data.tokenizer, split.first(SAMPLED), f"{data.name} ({name})")
    return data
