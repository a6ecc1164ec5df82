"""What has been written, in the shape of OpenAI's completions."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from kinfolk.decoding.detokenize import Text
from kinfolk.decoding.sequence import Scored
from kinfolk.use.serve.protocol import Asked
from kinfolk.use.serve.scheduler import Piece

IMPOSSIBLE = -9999.0
"""In the place of minus infinity."""


@dataclasses.dataclass
class Choice:
    """One text of an answer, as far as it has come."""

    text: str = ""
    finish: str | None = None
    tokens: list[Scored] = dataclasses.field(default_factory=list)
    offsets: list[int] = dataclasses.field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Take news in."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.offsets += piece.offsets
        self.finish = piece.finish


@dataclasses.dataclass(frozen=True)
class Answer:
    """How a request is answered: whole, or piece by piece."""

    asked: Asked
    number: str
    created: int
    _openings: dict[int, Choice] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the answer once all texts are there."""
        shown = [self._choice(i, choice, self.opening(i)) for i, choice in enumerate(choices)]
        return self._frame(shown) | {"usage": self.usage(sum(len(choice.tokens) for choice in choices))}

    def piece(self, news: Piece, first: bool) -> dict[str, Any]:
        """Return news of one text; the first of them begin with the prompt if it is to be echoed."""
        choice = Choice()
        choice.add(news)
        opening = self.opening(news.row) if first else Choice()
        before = len(self.opening(news.row).text) if self.asked.echo and not first else 0
        return self._frame([self._choice(news.row, choice, opening, before)])

    def usage(self, n_new: int) -> dict[str, int]:
        """Count tokens."""
        n_prompt = self.asked.n_prompt
        return {"prompt_tokens": n_prompt, "completion_tokens": n_new, "total_tokens": n_prompt + n_new}

    def ending(self, n_new: int) -> dict[str, Any]:
        """Return the last piece of a stream that was to count tokens."""
        return self._frame([]) | {"usage": self.usage(n_new)}

    def opening(self, i: int) -> Choice:
        """Return what comes before a text: its prompt, if it is to be echoed."""
        asked = self.asked
        if not asked.echo:
            return Choice()
        # decoded once, not for every token that is streamed
        if i not in self._openings:
            self._openings[i] = self._opening(i)
        return self._openings[i]

    def _opening(self, i: int) -> Choice:
        asked = self.asked
        each = len(asked.rows) // len(asked.prompts)
        ids, scores = asked.prompts[i // each], asked.rows[i - i % each].read
        offsets, text = [], Text(asked.served.decode)
        for token in ids if scores else ():
            offsets.append(text.length)
            text.add(token)
        return Choice(asked.served.decode(ids), None, list(scores), offsets)

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.number,
            "object": "text_completion",
            "created": self.created,
            "model": self.asked.served.name,
            "choices": choices,
        }

    def _choice(self, i: int, choice: Choice, opening: Choice, before: int = 0) -> dict[str, Any]:
        logprobs = None
        if self.asked.logprobs is not None:
            start = before + len(opening.text)
            offsets = [*opening.offsets, *(start + at for at in choice.offsets)]
            logprobs = self._logprobs([*opening.tokens, *choice.tokens], offsets)
        text = opening.text + choice.text
        return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": choice.finish}

    def _logprobs(self, tokens: Sequence[Scored], offsets: Sequence[int]) -> dict[str, Any]:
        names = self.asked.served.names
        return {
            "tokens": [names[one.token] for one in tokens],
            "token_logprobs": [None if one.logprob is None else _finite(one.logprob) for one in tokens],
            "top_logprobs": [
                None if one.logprob is None else {names[i]: _finite(log_p) for i, log_p in one.top} for one in tokens
            ]
            if self.asked.logprobs
            else None,
            "text_offset": list(offsets),
        }


def _finite(log_p: float) -> float:
    """Return a number that JSON can say; what cannot be has a very small probability."""
    return log_p if math.isfinite(log_p) else IMPOSSIBLE
