"""One child process that works in one folder: started with its own threads, watched, stopped, and explained.

A child is told to stop in three ways and needs all of them: SIGINT (save and leave), the end of its standard
input (the parent is gone, even by kill -9), and SIGKILL when it does not listen.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import psutil

from kinfolk.core.machine import sleep_at_barriers

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
OUTPUT, ERRORS = "stdout.txt", "stderr.txt"


class Child:
    """A running process, its peak memory as sampled, and the company it had."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        *,
        threads: int = 1,
        held: Sequence[int] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start it.

        held: file descriptors that stay open for as long as any child lives: locks.
        environment: variables besides those of this process.
        """
        self.folder, self.environment = folder, environment
        self.started = time.monotonic()
        self.peak_bytes = 0
        self._company = 0
        self._samples = 0
        sleep_at_barriers()
        every = (
            os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads)) | {"PYTHONUNBUFFERED": "1"} | dict(environment)
        )
        with (folder / OUTPUT).open("wb") as out, (folder / ERRORS).open("wb") as errors:
            # a session of its own: Ctrl-C reaches the parent only, which then asks each child once
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                env=every,
                start_new_session=True,
                pass_fds=tuple(held),
            )

    @property
    def seconds(self) -> float:
        """How long it has lived."""
        return time.monotonic() - self.started

    @property
    def neighbours(self) -> float:
        """How many others ran beside it, on average."""
        return self._company / self._samples if self._samples else 0.0

    def watch(self, neighbours: int) -> int | None:
        """Sample memory and company; return the exit code once it has ended."""
        self._company += neighbours
        self._samples += 1
        # it may end between two looks
        with contextlib.suppress(psutil.Error):
            self.peak_bytes = max(self.peak_bytes, psutil.Process(self.process.pid).memory_info().rss)
        return self.process.poll()

    def ask_to_stop(self) -> None:
        """Ask it to save and leave."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def end(self, patience: float) -> int:
        """Wait for it to leave, and kill it when it has not after `patience` seconds."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.close()
        return code

    def close(self) -> None:
        """Let go of the pipe to a child that has ended."""
        if self.process.stdin:
            self.process.stdin.close()

    def last_words(self, lines: int = 5) -> str:
        """Return the end of what it wrote to standard error."""
        return last_lines(self.folder / ERRORS, lines)


def last_lines(file: Path, lines: int) -> str:
    """Return the last lines of a text file that say something, without reading all of a long one."""
    try:
        with file.open("rb") as text:
            text.seek(max(0, file.stat().st_size - 64 * 1024))
            tail = text.read().decode("utf-8", "replace")
    except OSError:
        return ""
    # colours and cursor movements mean nothing in a report
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", tail)
    return "\n".join([line.rstrip() for line in plain.splitlines() if line.strip()][-lines:])


def explain(code: int) -> str:
    """Say what an exit code means."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def peak_memory() -> int:
    """Return the most resident bytes this process ever had.

    Linux's VmHWM belongs to the program; getrusage's maxrss is inherited through fork and exec, so a child of a
    large parent would be charged for its parent.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(re.search(r"VmHWM:\s*(\d+) kB", status).group(1)) * 1024  # type: ignore[union-attr]
    except (OSError, AttributeError):
        import resource
        import sys

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def interrupt_with_parent() -> None:
    """Interrupt this process when its standard input ends, which is when the parent has gone."""
    import sys
    import threading

    def wait() -> None:
        try:
            while os.read(sys.stdin.fileno(), 1024):
                pass
        except (OSError, ValueError):
            return
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Take a request to terminate, as batch systems send it, for Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        # only the main thread may set handlers
        yield
        return
    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)
