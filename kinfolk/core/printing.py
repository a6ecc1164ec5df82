"""Escape sequences in what reaches a terminal: control characters are spelled out, whatever file they came from.

A terminal obeys escape sequences: they move the cursor, hide what was printed, and change the window's title. Names
and results come from files that may be somebody else's, so both ways to print are cleaned here: `clean` wraps the
streams of `print`, and `kinfolk.core.console` has rich's console, whose own sequences pass.
"""

import contextlib
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import IO, Any, TextIO

# C0 but for tab and newline, DEL, C1, and what turns the direction of text; a carriage return only before a newline
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")

PIPED = 100
"""Columns of a text that goes to a file or a pipe."""


def printable(text: str) -> str:
    r"""Return a text whose control characters are spelled out: an escape becomes \x1b."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def hanging(label: str, text: str, indent: int | None = None) -> str:
    """Return a label and a text wrapped to the width of the terminal, further lines indented as far as the label."""
    room = shutil.get_terminal_size((PIPED, 24)).columns
    further = " " * (len(label) if indent is None else indent)
    return textwrap.fill(text, max(room, 40), initial_indent=label, subsequent_indent=further, break_on_hyphens=False)


class Clean:
    """A text stream that spells control characters out; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        # rich looks for this name, and writes to what is behind it
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write a text."""
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def clean() -> Iterator[None]:
    """Clean what is printed to standard output and standard error."""
    streams = sys.stdout, sys.stderr
    # a process without standard streams has None in their place
    wrapped: Any = [Clean(stream) if stream is not None else None for stream in streams]
    with contextlib.redirect_stdout(wrapped[0]), contextlib.redirect_stderr(wrapped[1]):
        yield


def raw(stream: IO[str]) -> IO[str]:
    """Return the stream behind a cleaned one, for sequences of our own."""
    return getattr(stream, "rich_proxied_file", stream)
