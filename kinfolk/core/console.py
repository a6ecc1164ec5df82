"""rich's console, with the control characters of texts spelled out; see `kinfolk.core.printing`."""

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
