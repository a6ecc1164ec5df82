"""A fork server: one process imports what every trial needs, and each trial is a fork of it.

Importing PyTorch and this package takes two to three seconds of processor time, a fork some milliseconds. The server
runs nothing but imports, so it has one thread and no state that a trial could inherit from another; it checks that, and
a machine where it does not hold (or that is not Linux) starts its children anew. A child differs in nothing else: its
own session, standard streams, descriptors, working folder and variables, and `python -m MODULE` is what it runs.

Protocol: messages of JSON over a pair of sockets that keeps their bounds, descriptors beside them (SCM_RIGHTS). The
server answers a request with a process id, and tells the exit code of every child. It ends when its parent does, or
after a minute without work.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

IDLE = 60.0
"""Seconds without a child after which a server ends."""

LATER = ("KINFOLK_PLUGINS", "KINFOLK_CACHE", "PYTEST_CURRENT_TEST", "PWD", "OLDPWD", "COLUMNS", "LINES")
"""Variables that are read when they are needed and not when something is imported: a child gets its own."""

LONGEST, MOST = 1 << 16, 64
"""Bytes and descriptors of one message."""


class UnavailableError(Exception):
    """Forks are not safe here, or the server has gone."""


class Forked:
    """A child of a fork server, with the part of `subprocess.Popen` that is used of it."""

    def __init__(self, server: "ForkServer", pid: int, handle: int, stdin: IO[str]) -> None:
        self.server, self.pid, self.stdin = server, pid, stdin
        self.stdout = None
        # a descriptor of the process (pidfd), because another process may get its number
        self._handle = handle
        self.returncode: int | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        modules: Sequence[str],
        variables: Mapping[str, str],
        streams: Sequence[int],
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> Self:
        """Start a command of `child.module` as a fork; raise `UnavailableError` where it must be started anew.

        modules, variables: what the server imports, and what it is started with; one server is kept for each number of
            threads, and replaced when these change, but for variables that mean nothing to an import.
        streams: where output and errors go, and what else stays open. environment: variables of this child alone.
        folder: where it works; by default where this process does.
        """
        place = command.index("-m") if "-m" in command[:3] else 0
        if not sys.platform.startswith("linux") or not place or command[0] != sys.executable:
            raise UnavailableError("only modules of ours, and only on Linux")
        changes = {name: variables.get(name) for name in LATER} | dict(environment)
        reading, writing = os.pipe()
        try:
            call = {"module": command[place + 1], "arguments": list(command[place + 2 :]), "environment": changes}
            call |= {"cwd": str(folder or Path.cwd())}
            server, pid, handle = _ask((command[:place], variables, modules), call, [reading, *streams])
            return cls(server, pid, handle, os.fdopen(os.dup(writing), "w", encoding="utf-8"))
        finally:
            os.close(reading)
            os.close(writing)

    def poll(self) -> int | None:
        """Return the exit code once the child has ended."""
        if self.returncode is None and select.select([self._handle], [], [], 0)[0]:
            self.returncode = self.server.exit_code(self.pid)
            os.close(self._handle)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raise `TimeoutExpired` when there is none in `timeout` seconds."""
        if self.returncode is None and not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if the child is still there."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The parent's side: start a server, ask it for children, hear how they ended."""

    def __init__(self, python: Sequence[str], environment: Mapping[str, str], modules: Sequence[str]) -> None:
        """Start it with the interpreter, its options, and the variables that its children would get."""
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [*python, "-m", __name__, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.children: set[int] = set()
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()

    def start(self, call: Mapping[str, Any], streams: Sequence[int]) -> tuple[int, int]:
        """Fork a child that runs a module; return its process id and a descriptor of it (pidfd).

        The server opens the descriptor before it can reap the child, however soon that ends.

        streams: descriptors of its standard input, output and errors, and of what it holds besides.
        """
        order = json.dumps(call).encode()
        with self._lock:
            try:
                socket.send_fds(self.link, [order], list(streams))
            except OSError as error:
                raise UnavailableError(str(error)) from None
            while "pid" not in (answer := self._hear()):
                pass
            self.children.add(answer["pid"])
        return int(answer["pid"]), int(answer["handle"])

    def exit_code(self, pid: int) -> int:
        """Return how a child that has ended did; 1 when the server has gone and it is not known."""
        with self._lock:
            self.children.discard(pid)
            try:
                while pid not in self._codes:
                    self._hear()
            except UnavailableError:
                return 1
            return self._codes.pop(pid)

    def close(self) -> None:
        """End the server, once it has no children."""
        self.link.close()
        self.process.wait()

    def _hear(self) -> dict[str, Any]:
        try:
            message, handles, _, _ = socket.recv_fds(self.link, LONGEST, 1)
        except OSError:
            message, handles = b"", []
        if not message:
            raise UnavailableError("the fork server has ended")
        answer: dict[str, Any] = json.loads(message)
        if "refused" in answer:
            raise UnavailableError(answer["refused"])
        if "ended" in answer:
            self._codes[answer["ended"]] = answer["code"]
        return answer | ({"handle": handles[0]} if handles else {})


_servers: dict[str, tuple[Any, ForkServer]] = {}
_former: list[ForkServer] = []
_refused: set[str] = set()
_lock = threading.Lock()


def _ask(
    kind: tuple[Sequence[str], Mapping[str, str], Sequence[str]], call: Mapping[str, Any], streams: Sequence[int]
) -> tuple[ForkServer, int, int]:
    """Start a child of the server of one kind, and the server if there is none."""
    python, variables, modules = kind
    threads = variables.get("OMP_NUM_THREADS", "")
    wanted = (list(python), {name: value for name, value in variables.items() if name not in LATER}, tuple(modules))
    for retry in (False, True):
        with _lock:
            if threads in _refused:
                raise UnavailableError("the server could not fork before")
            started, server = _servers.get(threads, (None, None))
            if server is None or started != wanted or retry:
                _former.extend([server] if server else [])
                _end_former()
                server = ForkServer(*wanted)
                _servers[threads] = wanted, server
        # one that was idle for long has gone; one that cannot fork here says so each time
        with contextlib.suppress(UnavailableError):
            return server, *server.start(call, streams)
    _refused.add(threads)
    raise UnavailableError("the server cannot fork")


def close() -> None:
    """End every server of this process that has no children; the others end with it, or when they have been idle."""
    with _lock:
        _former.extend(server for _, server in _servers.values())
        _servers.clear()
        _end_former()


atexit.register(close)


def _end_former() -> None:
    for server in [server for server in _former if not server.children]:
        _former.remove(server)
        server.close()


def serve(link: socket.socket, modules: Sequence[str]) -> tuple[str, list[str]] | None:
    """Import, then fork for every request; return in a child what it has to run, and in the server None at its end."""
    if not _prepare(link, modules):
        return None
    children: dict[int, int] = {}
    last = time.monotonic()
    while children or time.monotonic() - last < IDLE:
        ready = select.select([link.fileno(), *children], [], [], 1.0)[0]
        for handle in ready:
            if handle in children:
                _reap(link, handle, children.pop(handle))
        if link.fileno() in ready:
            message, streams, _, _ = socket.recv_fds(link, LONGEST, MOST)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                return _become(json.loads(message), streams, [link.detach(), *children])
            for stream in streams:
                os.close(stream)
            handle = os.pidfd_open(pid)
            children[handle] = pid
            _tell(link, {"pid": pid}, [handle])
        if children:
            last = time.monotonic()
    return None


def _prepare(link: socket.socket, modules: Sequence[str]) -> bool:
    """Import; False where a fork would lack threads that libraries count on."""
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    # pages of imported modules stay shared
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        _tell(link, {"refused": f"{threads} threads after the imports"})
    return threads == 1


def _become(order: Mapping[str, Any], streams: Sequence[int], foreign: Sequence[int]) -> tuple[str, list[str]]:
    """Turn a fork into the child that was ordered, but for its work; foreign: descriptors of the server."""
    os.setsid()
    for descriptor in foreign:
        os.close(descriptor)
    for place, stream in enumerate(streams[:3]):
        os.dup2(stream, place)
        os.close(stream)
    for name, value in order["environment"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    os.chdir(order["cwd"])
    return order["module"], order["arguments"]


def _reap(link: socket.socket, handle: int, pid: int) -> None:
    os.close(handle)
    _tell(link, {"ended": pid, "code": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})


def _tell(link: socket.socket, message: Mapping[str, Any], handles: Sequence[int] = ()) -> None:
    # a parent that has gone hears nothing; the next look at the link ends the server
    with contextlib.suppress(OSError):
        socket.send_fds(link, [json.dumps(message).encode()], list(handles))


if __name__ == "__main__":
    if (found := serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])) is not None:
        sys.argv = [found[0], *found[1]]
        runpy.run_module(found[0], run_name="__main__", alter_sys=True)
