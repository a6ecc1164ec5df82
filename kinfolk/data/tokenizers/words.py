"""Cache of encoded words: a byte-level tokenizer splits text into words, and most have been seen before.

The library splits and looks up every word again, at 2 MB/s a core; remembering words is three to four times faster and
gives the same ids. It is done only where Python's regular expressions certainly split as the library does.
"""

import json
import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

# letters whose class no version of Unicode will change: Latin, Cyrillic, kana, Chinese characters, hangul
_LETTER = "A-Za-zÀ-ÖØ-öø-ɏЀ-ҁҊ-ԯぁ-ゖァ-ヺ一-龥가-힣"
# dashes, quotation marks, dots, and what is between ASCII and the letters that is neither space, letter nor number
_OTHER = "‐-‧‰-⁞¡-©«¬®-±´¶-¸»¿×÷"  # noqa: RUF001

_KNOWN = re.compile(f"[\x00-\x7f{_LETTER}{_OTHER}]*")
# the splitting of GPT-2, which the library calls ByteLevel
_WORD = re.compile(
    rf"'(?:[stmd]|re|ve|ll)| ?[{_LETTER}]+| ?[0-9]+| ?[^\s{_LETTER}0-9]+|\s+(?!\S)|\s+",
    re.ASCII,
)
_MOST_WORDS = 1 << 17
_LONGEST = 64


class WordMemory:
    """The ids of words seen before. `encode_word` is asked for the others."""

    def __init__(self, encode_word: Callable[[str], list[int]], dtype: np.dtype[Any]) -> None:
        self.encode_word, self.dtype = encode_word, dtype
        self._seen = _Seen(encode_word)

    def knows(self, text: str) -> bool:
        """Tell whether a text has only characters whose class is certain."""
        return text.isascii() or _KNOWN.fullmatch(text) is not None

    def encode(self, text: str) -> NDArray[Any]:
        """Return the ids of a text that it knows."""
        # bounded, and emptied now and then rather than kept in order: rare words come and go
        if len(self._seen) > _MOST_WORDS:
            self._seen.clear()
        return np.fromiter(chain.from_iterable(map(self._seen.__getitem__, _WORD.findall(text))), self.dtype)


def splits_into_words(tokenizer_json: str) -> bool:
    """Tell whether a tokenizer does nothing but split as GPT-2 does and encode each word by itself."""
    spec = json.loads(tokenizer_json)
    splitter = spec["pre_tokenizer"] or {}
    return (
        spec["normalizer"] is None
        and splitter.get("type") == "ByteLevel"
        and splitter.get("use_regex") is True
        and splitter.get("add_prefix_space") is False
        and not spec["model"].get("dropout")
        and all(token["special"] for token in spec["added_tokens"])
    )


class _Seen(dict[str, tuple[int, ...]]):
    def __init__(self, encode_word: Callable[[str], list[int]]) -> None:
        super().__init__()
        self.encode_word = encode_word

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = tuple(self.encode_word(word))
        if len(word) <= _LONGEST:
            self[word] = ids
        return ids
