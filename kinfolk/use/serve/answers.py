"""Answers in the shape of OpenAI's completions and chat completions."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

from kinfolk.decoding.detokenize import Text
from kinfolk.decoding.sequence import ScoredToken
from kinfolk.use.serve.messages import (
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    CompletionChoice,
    Logprobs,
    TextCompletion,
    Usage,
)
from kinfolk.use.serve.protocol import TextRequest
from kinfolk.use.serve.scheduler import Piece

Kind = Literal["chat.completion", "chat.completion.chunk"]
IMPOSSIBLE = -9999.0
"""In the place of minus infinity."""


@dataclasses.dataclass
class Choice:
    """One text of an answer, as far as it has come."""

    text: str = ""
    finish: str | None = None
    tokens: list[ScoredToken] = dataclasses.field(default_factory=list)
    offsets: list[int] = dataclasses.field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Take news in."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.offsets += piece.offsets
        self.finish = piece.finish


@dataclasses.dataclass(frozen=True)
class CompletionAnswer:
    """How a request for completions is answered: whole, or piece by piece."""

    order: TextRequest
    number: str
    created: int
    _openings: dict[int, Choice] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def whole(self, choices: Sequence[Choice]) -> TextCompletion | ChatCompletion:
        """Return the answer once all texts are there."""
        shown = [self._choice(i, choice, self.opening(i)) for i, choice in enumerate(choices)]
        return self._frame(shown, self.usage(sum(len(choice.tokens) for choice in choices)))

    def piece(self, news: Piece, first: bool) -> TextCompletion | ChatCompletion:
        """Return news of one text; the first of them begin with the prompt if it is to be echoed."""
        choice = Choice()
        choice.add(news)
        opening = self.opening(news.row) if first else Choice()
        before = len(self.opening(news.row).text) if self.order.echo and not first else 0
        return self._frame([self._choice(news.row, choice, opening, before)])

    def usage(self, n_new: int) -> Usage:
        """Count tokens."""
        n_prompt = self.order.n_prompt
        return Usage(prompt_tokens=n_prompt, completion_tokens=n_new, total_tokens=n_prompt + n_new)

    def ending(self, n_new: int) -> TextCompletion | ChatCompletion:
        """Return the last piece of a stream that was to count tokens."""
        return self._frame([], self.usage(n_new))

    def opening(self, i: int) -> Choice:
        """Return what comes before a text: its prompt, if it is to be echoed."""
        if not self.order.echo:
            return Choice()
        # decoded once, not for every token that is streamed
        if i not in self._openings:
            self._openings[i] = self._opening(i)
        return self._openings[i]

    def _opening(self, i: int) -> Choice:
        order = self.order
        each = len(order.rows) // len(order.prompts)
        ids, scores = order.prompts[i // each], order.rows[i - i % each].read
        offsets, text = [], Text(order.served.decode)
        for token in ids if scores else ():
            offsets.append(text.length)
            text.add(token)
        return Choice(order.served.decode(ids), None, list(scores), offsets)

    def _frame(self, choices: list[CompletionChoice], usage: Usage | None = None) -> TextCompletion:
        model = self.order.served.name
        return TextCompletion(id=self.number, created=self.created, model=model, choices=choices, usage=usage)

    def _choice(self, i: int, choice: Choice, opening: Choice, before: int = 0) -> CompletionChoice:
        logprobs = None
        if self.order.logprobs is not None:
            start = before + len(opening.text)
            offsets = [*opening.offsets, *(start + at for at in choice.offsets)]
            logprobs = self._logprobs([*opening.tokens, *choice.tokens], offsets)
        text = opening.text + choice.text
        return CompletionChoice(index=i, text=text, logprobs=logprobs, finish_reason=choice.finish)

    def _logprobs(self, tokens: Sequence[ScoredToken], offsets: Sequence[int]) -> Logprobs:
        names = self.order.served.names
        tops = [None if one.logprob is None else {names[i]: _finite(log_p) for i, log_p in one.top} for one in tokens]
        return Logprobs(
            tokens=[names[one.token] for one in tokens],
            token_logprobs=[None if one.logprob is None else _finite(one.logprob) for one in tokens],
            top_logprobs=tops if self.order.logprobs else None,
            text_offset=list(offsets),
        )


class ChatAnswer(CompletionAnswer):
    """How a request for the next message of a conversation is answered."""

    def whole(self, choices: Sequence[Choice]) -> ChatCompletion:
        """Return the answer once all messages are there."""
        shown = [
            ChatChoice(index=i, message=ChatMessage(role="assistant", content=one.text), finish_reason=one.finish)
            for i, one in enumerate(choices)
        ]
        return self._chat("chat.completion", shown, self.usage(sum(len(choice.tokens) for choice in choices)))

    def piece(self, news: Piece, first: bool) -> ChatCompletion:
        """Return news of one message; the first say whose it is."""
        delta = ChatMessage(role="assistant" if first else None, content=news.text)
        return self._chat("chat.completion.chunk", [ChatChoice(index=news.row, delta=delta, finish_reason=news.finish)])

    def ending(self, n_new: int) -> ChatCompletion:
        """Return the last piece of a stream that was to count tokens."""
        return self._chat("chat.completion.chunk", [], self.usage(n_new))

    def _chat(self, kind: Kind, choices: list[ChatChoice], usage: Usage | None = None) -> ChatCompletion:
        model = self.order.served.name
        return ChatCompletion(
            id=self.number, object=kind, created=self.created, model=model, choices=choices, usage=usage
        )


def _finite(log_p: float) -> float:
    """Return a number that JSON can say; what cannot be has a very small probability."""
    return log_p if math.isfinite(log_p) else IMPOSSIBLE
