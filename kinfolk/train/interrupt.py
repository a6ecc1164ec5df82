"""Ctrl-C and a request to terminate end a run at the next step, with a checkpoint."""

import signal
import threading
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While it is entered, the first signal only sets `asked`; a second one interrupts at once.

    Interrupting at once is safe as well, since every file is written aside, but the steps since the last
    checkpoint have to be repeated.
    """

    def __init__(self) -> None:
        self.asked = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # only the main thread may set handlers; elsewhere the caller's own handling stays
        if threading.current_thread() is threading.main_thread():
            self._old = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, old in self._old.items():
            signal.signal(number, old)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
