"""Child processes: started without the working folder on their path, watched, stopped, and gone with their parent.

A child is stopped in three ways and needs all of them: SIGINT (save and leave), the end of its standard input (the
parent is gone, even by kill -9), and SIGKILL when it does not listen.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from kinfolk.core.fork_server import Forked, UnavailableError
from kinfolk.core.machine import sleep_at_barriers

PARENT = "KINFOLK_PARENT"
"""Where the process id of a launcher is left for its workers."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
ALWAYS = {"OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
"""NumPy's products are small here, and the threads that it starts when it is imported would forbid forks."""
OUTPUT, ERRORS = "stdout.txt", "stderr.txt"


def safe_path() -> list[str]:
    """Return the option that keeps the working folder out of a child's module path, unless it is in this one's.

    `python -m` looks for modules in the working folder first, `kin` does not: a worker that is started inside a
    folder of somebody else's must not import a json.py that lies there.
    """
    here = Path.cwd()
    return [] if any(Path(entry or ".").absolute() == here for entry in sys.path) else ["-P"]


def module(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of ours in a child process."""
    return [sys.executable, *safe_path(), "-m", name, *map(str, arguments)]


class Child:
    """A running process, its peak memory as sampled, and the company it had."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path | None = None,
        *,
        threads: int = 1,
        held: Sequence[int] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        preloaded: Sequence[str] = (),
    ) -> None:
        """Start it.

        folder: where its output and errors are written; without one, its output is read by `lines`.
        held: file descriptors that stay open for as long as any child lives: locks.
        environment: variables besides those of this process.
        preloaded: modules that a fork server imports once for all such children, where forks are safe.
        """
        self.folder, self.environment = folder, environment
        self.started = time.monotonic()
        self.peak_bytes = 0
        self._company = 0
        self._samples = 0
        sleep_at_barriers()
        variables = os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads)) | ALWAYS
        with contextlib.ExitStack() as files:
            logs = [files.enter_context((folder / name).open("wb")) for name in (OUTPUT, ERRORS)] if folder else []
            if preloaded and logs:
                with contextlib.suppress(UnavailableError):
                    streams = [*(log.fileno() for log in logs), *held]
                    self.process: subprocess.Popen[str] | Forked = Forked.start(
                        command, preloaded, variables, streams, environment
                    )
                    return
            out, errors = logs or (subprocess.PIPE, None)
            # a session of its own: Ctrl-C reaches the parent only, which then asks each child once
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=errors,
                env=variables | dict(environment),
                start_new_session=True,
                pass_fds=tuple(held),
                text=True,
                encoding="utf-8",
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
        import psutil

        self._company += neighbours
        self._samples += 1
        # it may end between two looks
        with contextlib.suppress(psutil.Error):
            self.peak_bytes = max(self.peak_bytes, psutil.Process(self.process.pid).memory_info().rss)
        return self.process.poll()

    def say(self, line: str) -> None:
        """Write a line to its standard input; one that is gone hears nothing, and the end of its output says so."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """Read its output as it comes, until it ends."""
        assert self.process.stdout is not None
        # not `yield from`, which closes the pipe when a reader leaves
        return iter(self.process.stdout)

    def ask_to_stop(self) -> None:
        """Ask it to save and leave."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def end(self, patience: float = 0.0) -> int:
        """Wait for it to leave, and kill it when it has not after `patience` seconds."""
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.close()
        return code

    def close(self) -> None:
        """Let go of the pipes to a child that has ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                # what it did not read any more is lost
                with contextlib.suppress(OSError):
                    pipe.close()

    def last_words(self, lines: int = 5) -> str:
        """Return the end of what it wrote to standard error."""
        return last_lines(self.folder / ERRORS, lines) if self.folder else ""


def last_lines(file: Path, lines: int) -> str:
    """Return the last lines of a text file that are not blank, without reading all of a long one."""
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


def interrupt_with_parent() -> None:
    """Interrupt this process when its standard input ends, which is when the parent has gone."""

    def wait() -> None:
        try:
            while os.read(sys.stdin.fileno(), 1024):
                pass
        except (OSError, ValueError):
            return
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def end_with_parent(grace: float = 60.0, every: float = 0.5) -> None:
    """Interrupt this process when the launcher named in the environment is gone, even by SIGKILL.

    For processes that torch elastic starts, whose standard input is not ours to close.

    grace: seconds for saving; a worker that waits for another one that is gone already would never end by itself.
    """
    parent = int(os.environ.get(PARENT, "0"))
    if not parent:
        return

    def watch() -> None:
        # an orphan is given another parent
        while os.getppid() == parent:
            time.sleep(every)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


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
