"""rich's console, with the control characters of texts spelled out; see `kinfolk.core.printing`."""

import io
import json
import sys
from collections.abc import Iterable
from typing import IO, Any

import rich.console
from rich.segment import Segment

from kinfolk.core.printing import printable, raw


class Console(rich.console.Console):
    """rich's console, with the control characters of texts spelled out."""

    @property
    def file(self) -> IO[str]:
        """The stream itself: a live display puts a proxy around the cleaned one, and its sequences must pass."""
        return raw(super().file)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        """Yield the segments of something, cleaned; rich's own control segments pass."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text, style, control) if control else Segment(printable(text), style)


class NoteLines(io.TextIOBase):
    """A stream that writes every line as a JSON object, an event named "note"."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream, self._rest = stream, ""

    def write(self, text: str) -> int:
        """Write the lines that are complete; the rest of a text waits for its end."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in filter(str.strip, lines):
            self.stream.write(note(line) + "\n")
        self.stream.flush()
        return len(text)


def note(text: str) -> str:
    """Return the JSON object of a sentence for people among events for machines."""
    return json.dumps({"event": "note", "text": text}, ensure_ascii=False)


def progress_console(events: bool) -> Console:
    """Return the console of progress, on standard error: sentences, or one JSON object per line."""
    if not events:
        return Console(stderr=True)
    # wide: a line of text is one event
    return Console(file=NoteLines(sys.stderr), width=10_000, color_system=None)  # type: ignore[arg-type]
