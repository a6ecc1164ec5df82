"""Text to ids and back where an objective has ids after those of the tokenizer: sentinel k is written `<k>`."""

import re
from collections.abc import Sequence
from itertools import groupby

from kinfolk.data.tokenizers.tokenizer import Tokenizer

_SENTINEL = re.compile(r"<(\d+)>")


class Spelling:
    """A tokenizer that knows `n_extra` more ids; sentinel 0 is the last of them, as in T5."""

    def __init__(self, tokenizer: Tokenizer, n_extra: int = 0) -> None:
        self.tokenizer, self.n_extra = tokenizer, n_extra
        self.end = tokenizer.vocab_size + n_extra

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; a number in angle brackets that is no sentinel is text."""
        ids: list[int] = []
        last = 0
        for found in _SENTINEL.finditer(text) if self.n_extra else ():
            if int(found.group(1)) < self.n_extra:
                ids += [*self._plain(text[last : found.start()]), self.end - 1 - int(found.group(1))]
                last = found.end()
        return ids + self._plain(text[last:])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        parts = []
        for extra, group in groupby(ids, lambda i: i >= self.tokenizer.vocab_size):
            run = list(group)
            parts.append("".join(f"<{self.end - 1 - i}>" for i in run) if extra else self.tokenizer.decode(run))
        return "".join(parts)

    def _plain(self, text: str) -> list[int]:
        return self.tokenizer.encode(text) if text else []
