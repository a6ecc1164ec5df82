"""Tokens to text while they come: a character may take several tokens, and a text may have to stop before a word."""

from collections.abc import Callable, Sequence

BROKEN = "\ufffd"
CONTEXT = 8
"""Tokens of a prompt that decide how the first new ones are written, such as whether a space comes before."""


class Text:
    """What one row has written. `add` returns the text that is settled by a token, `close` what still waits."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), before: Sequence[int] = ()
    ) -> None:
        self.decode, self.stops, self.stopped = decode, tuple(stops), False
        self.n_settled = 0
        self._ids = list(before[-CONTEXT:])
        # text is made of the tokens from `_first` on, of which those before `_read` have been handed on already
        self._first, self._read = 0, len(self._ids)
        self._held = ""

    def add(self, token: int) -> str:
        """Take a token; return the text that is now certain, without anything a stop may begin with."""
        self._ids.append(token)
        new = self._new()
        if new.endswith(BROKEN):
            return ""
        self._first, self._read = self._read, len(self._ids)
        return self._past_stops(new)

    def take(self, token: int, finish: str | None) -> tuple[str, str | None]:
        """Take the newest token of a row, after which it may be finished; return new text and whether that holds."""
        # the token that ends a text is no part of it
        new = "" if finish == "stop" else self.add(token)
        if self.stopped:
            return new, "stop"
        if finish is not None:
            new += self.close()
        return new, "stop" if self.stopped else finish

    def close(self) -> str:
        """Return what still waits when nothing comes after it."""
        new, self._read = self._new(), len(self._ids)
        settled = self._past_stops(new)
        rest, self._held = ("" if self.stopped else self._held), ""
        self.n_settled += len(rest)
        return settled + rest

    @property
    def length(self) -> int:
        """Characters written so far, those that wait included."""
        return self.n_settled + len(self._held) + len(self._new())

    def _new(self) -> str:
        if self._read == len(self._ids):
            return ""
        old = self.decode(self._ids[self._first : self._read])
        return self.decode(self._ids[self._first :])[len(old) :]

    def _past_stops(self, new: str) -> str:
        text, self._held = self._held + new, ""
        found = [at for at in (text.find(stop) for stop in self.stops) if at >= 0]
        if found:
            self.stopped, text = True, text[: min(found)]
        else:
            n = max((_overlap(text, stop) for stop in self.stops), default=0)
            text, self._held = text[: len(text) - n], text[len(text) - n :]
        self.n_settled += len(text)
        return text


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text a stop may begin with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
