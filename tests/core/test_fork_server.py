"""Children of a fork server are what `python -m` would have started: streams, folder, variables, signals, codes."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinfolk.core import child, fork_server
from kinfolk.core.child import ERRORS, OUTPUT, Child
from kinfolk.core.fork_server import Forked

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are forked on Linux only")

REPORT = """
import json, os, signal, sys, time
import preloaded_here
signal.signal(signal.SIGINT, signal.default_int_handler)
preloaded_here.seen.append(os.getpid())
facts = {"pid": os.getpid(), "session": os.getsid(0), "cwd": os.getcwd(), "arguments": sys.argv[1:]}
facts |= {"own": os.environ.get("OWN"), "plugins": os.environ.get("KINFOLK_PLUGINS")}
facts |= {"seen": preloaded_here.seen, "parent": os.getppid(), "name": __name__}
print(json.dumps(facts))
print("words", file=sys.stderr)
if "wait" in sys.argv:
    sys.stdin.read()
    sys.exit(4)
if "hang" in sys.argv:
    time.sleep(60)
sys.exit(3)
"""


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module to run and one to import before; both found as the parent finds its own."""
    (tmp_path / "reporting_here.py").write_text(REPORT)
    (tmp_path / "preloaded_here.py").write_text("seen = []\n")
    (tmp_path / "threaded_here.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("KINFOLK_PLUGINS", raising=False)
    monkeypatch.setattr(fork_server, "_servers", {})
    monkeypatch.setattr(fork_server, "_refused", set())
    yield tmp_path
    fork_server.close()


def start(ours: Path, name: str, *words: str, preloaded: str = "preloaded_here", **more: object) -> Child:
    (ours / name).mkdir()
    command = [sys.executable, "-P", "-m", "reporting_here", *words]
    return Child(command, ours / name, preloaded=(preloaded,), **more)  # type: ignore[arg-type]


def facts(ours: Path, name: str) -> dict[str, object]:
    lines: dict[str, object] = json.loads((ours / name / OUTPUT).read_text())
    return lines


def test_a_fork_is_a_child_of_its_own(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(ours, "a", "one", environment={"OWN": "yes"})
    assert isinstance(first.process, Forked)
    assert first.end(30) == 3
    monkeypatch.setenv("KINFOLK_PLUGINS", "/x/plugin.py")
    monkeypatch.chdir(ours)
    second = start(ours, "b", "two")
    assert second.end(30) == 3
    one, two = facts(ours, "a"), facts(ours, "b")
    assert one["seen"] == [one["pid"]], "a module that was imported before has no trace of another child"
    assert two["seen"] == [two["pid"]]
    assert one["parent"] == two["parent"] != os.getpid(), "both come from one server"
    assert (one["session"], two["session"]) == (one["pid"], two["pid"])
    assert (one["arguments"], two["arguments"]) == (["one"], ["two"])
    assert (one["own"], two["own"]) == ("yes", None)
    assert (one["plugins"], two["plugins"]) == (None, "/x/plugin.py")
    assert Path(str(two["cwd"])) == ours
    assert one["name"] == "__main__"
    assert (ours / "a" / ERRORS).read_text() == "words\n"


def test_signals_exit_codes_and_the_end_of_input(ours: Path) -> None:
    killed, hanging, waiting = (start(ours, name, word) for name, word in (("a", "hang"), ("b", "hang"), ("c", "wait")))
    with pytest.raises(subprocess.TimeoutExpired):
        killed.process.wait(0.01)
    killed.process.kill()
    assert killed.end(30) == -9
    until(lambda: (ours / "b" / OUTPUT).read_text())
    hanging.ask_to_stop()
    assert hanging.end(30) == -signal.SIGINT
    assert waiting.process.poll() is None
    waiting.close()
    assert waiting.end(30) == 4
    # an end that is known already does not reach a process that got its number since
    killed.ask_to_stop()


def test_a_child_that_has_ended_at_once_is_known(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number means nothing any more when the parent hears of it."""
    slow = fork_server.ForkServer.start

    def late(*arguments: object) -> object:
        answer = slow(*arguments)  # type: ignore[arg-type]
        until(lambda: not Path(f"/proc/{answer[0]}").exists())
        return answer

    monkeypatch.setattr(fork_server.ForkServer, "start", late)
    assert start(ours, "short").end(30) == 3


def test_what_is_held_stays_locked_until_the_last_child_has_gone(ours: Path) -> None:
    with (ours / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        one = start(ours, "held", "hang", held=[file.fileno()])
        until(lambda: (ours / "held" / OUTPUT).read_text())
    with (ours / "lock").open("w") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        one.process.kill()
        one.end(30)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_where_imports_start_threads_children_are_started_anew(ours: Path) -> None:
    one = start(ours, "anew", preloaded="threaded_here")
    assert isinstance(one.process, subprocess.Popen)
    assert one.end(30) == 3
    assert facts(ours, "anew")["parent"] == os.getpid()


def test_a_server_that_has_gone_is_replaced(ours: Path) -> None:
    first = start(ours, "before")
    first.end(30)
    assert isinstance(first.process, Forked)
    os.kill(first.process.server.process.pid, signal.SIGKILL)
    first.process.server.process.wait()
    second = start(ours, "after")
    assert isinstance(second.process, Forked)
    assert second.end(30) == 3
    hanging = start(ours, "orphan", "hang")
    assert isinstance(hanging.process, Forked)
    os.kill(hanging.process.server.process.pid, signal.SIGKILL)
    hanging.process.kill()
    assert hanging.end(30) == 1, "nobody knows how it ended"


def test_a_server_ends_with_its_parent(ours: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.core.test_fork_server import start\n"
        "print(start(Path(sys.argv[1]), 'inside', 'hang').process.server.process.pid, flush=True)\n"
        "import os; os._exit(0)"
    )
    root = str(Path(child.__file__).parents[2])
    paths = {"PYTHONPATH": os.pathsep.join([str(ours), root])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(ours)], env=os.environ | paths, capture_output=True, text=True
    )
    server = int(done.stdout)
    until(lambda: not Path(f"/proc/{server}").exists() or "Z" in Path(f"/proc/{server}/stat").read_text().split()[2])


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
