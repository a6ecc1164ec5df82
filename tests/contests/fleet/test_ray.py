"""A real Ray of two nodes that share nothing with the driver: the results of local processes, trial by trial."""

import contextlib
import errno
import os
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest

from kinfolk.contests.fleet import driver, places, ray_engine
from kinfolk.contests.fleet.desk import Desk
from kinfolk.contests.fleet.parcels import MARK
from kinfolk.contests.fleet.queue import Queue, Ticket
from kinfolk.contests.fleet.ray_task import Errand, attempt
from kinfolk.contests.run import run
from kinfolk.core.errors import DataError, SpecError
from tests.contests.fleet.conftest import CLIENTS, NODE, patiently
from tests.contests.fleet.killing import ended, happened, spared, trained, until_killed
from tests.contests.fleet.test_compare import TOY, quiet, scores, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "my.txt"
    file.write_text("".join(f"line {i} of a text that only the driver has\n" for i in range(4000)))
    return file


def asked(out: Path, text: Path, **more: object) -> Any:
    return settings(out, **({"contestants": ("gpt2",), "data": str(text), "budget": "8k-tokens", "jobs": 2} | more))


def is_busy(node: Any) -> bool:
    """Tell whether a node of the cluster has started the process of a trial."""
    try:
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return any(word.startswith("kinfolk.") for child in raylet.children(recursive=True) for word in child.cmdline())
    except psutil.Error:
        return False


@pytest.mark.parametrize(("kills", "seeds"), [(0, 2), pytest.param(10, 6, marks=pytest.mark.long)])
def test_tasks_give_the_local_results_and_lost_nodes_cost_nothing(
    cluster: Any, tmp_path: Path, text: Path, kills: int, seeds: int
) -> None:
    """Data and checkpoints travel by Ray alone. With kills, the second node dies at random moments in a trial."""
    chance, killed = random.Random(kills), list[object]()
    # trials of seconds, so that a node can die in one
    budget = "64k-tokens" if kills else "8k-tokens"
    local = run(asked(tmp_path / "local", text, seeds=seeds, budget=budget), console=quiet())

    def compare(turn: int) -> None:
        home, stop = tmp_path / f"home{turn}", threading.Event()

        def kill() -> None:
            while len(killed) + sum(happened(home, "died").values()) < kills and not stop.wait(0.2):
                node = list(cluster.worker_nodes)[-1]
                if is_busy(node) and not stop.wait(chance.uniform(0, 8)) and spared(home):
                    cluster.remove_node(node, allow_graceful=False)
                    # Ray wants to handle a signal for each node, which only a main thread may
                    with mock.patch("ray._private.utils.set_sigterm_handler"):
                        patiently(lambda: cluster.add_node(**NODE))

        killing = pool.submit(kill)
        try:
            comparison = run(asked(home, text, seeds=seeds, budget=budget, on="ray"), console=quiet())
        finally:
            stop.set()
        killing.result()
        killed.extend(range(sum(happened(home, "died").values())))
        assert scores(comparison) == scores(local)
        assert trained(home) == trained(tmp_path / "local"), "to the bit, step by step"
        assert list(ended(home).values()) == [1] * seeds
        assert Queue(home).count() == {"waiting": 0, "running": 0}

    # one thread for all turns: the processes of a node end with the thread that has started them
    with futures.ThreadPoolExecutor(max_workers=1) as pool:
        until_killed(kills, killed, compare)
        for node in list(cluster.worker_nodes) if kills else ():
            cluster.remove_node(node, allow_graceful=False)
    if kills:
        patiently(lambda: cluster.add_node(**NODE))


@pytest.mark.long
@pytest.mark.parametrize(("kills", "seeds"), [(1, 2), (10, 4)])
def test_an_address_and_a_driver_that_is_killed(
    cluster: Any, tmp_path: Path, text: Path, kills: int, seeds: int
) -> None:
    """`ray://HOST:PORT` from a process that is no part of the cluster, killed at random moments and started again."""
    local = run(asked(tmp_path / "local", text, seeds=seeds), console=quiet())
    assert len(local.outcomes["gpt2"]) == seeds
    chance, killed = random.Random(kills), list[object]()
    options = f"--data {text} --budget 8k-tokens --seeds {seeds} --tune off --match none --jobs 2 --threads 1 --nice 0"
    command = [sys.executable, "-m", "kinfolk", "compare", "gpt2", *options.split()]
    command += ["--on", f"ray://127.0.0.1:{CLIENTS}", *(word for name in TOY for word in ("--set", name))]

    def claims(home: Path) -> int:
        return sum(happened(home, "claimed").values())

    def compare(turn: int) -> None:
        home, code = tmp_path / f"home{turn}", -1
        with (tmp_path / "log").open("ab") as log:
            while code < 0:
                before = claims(home)
                process = subprocess.Popen(
                    [*command, "--out", str(home)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
                if len(killed) < kills:
                    while claims(home) == before and process.poll() is None:
                        time.sleep(0.05)
                    time.sleep(chance.uniform(0, 12))
                    if process.poll() is None:
                        process.kill()
                        killed.append(claims(home))
                code = process.wait(900)
                # Ray's proxy sometimes fails to start a server for a driver that follows a killed one
                if code == 2 and "start the same command again" in (tmp_path / "log").read_text().splitlines()[-1]:
                    code = -1
        assert code == 0, (tmp_path / "log").read_text()
        assert trained(home) == trained(tmp_path / "local"), "to the bit, step by step"
        assert list(ended(home).values()) == [1] * seeds

    until_killed(kills, killed, compare)


def without_the_package(*_: object) -> list[str]:
    raise ModuleNotFoundError("No module named 'kinfolk'")


def on_a_full_disk(*_: object) -> list[str]:
    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return attempt(Errand({"data": {"name": f"{MARK}0/x"}}, {}, None, {}), write, lambda _: None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("task", "message"),
    [
        (None, r"ray: node .*: kinfolk 9\.9\.9 is required, this worker has 0"),
        (without_the_package, "ray: a node cannot run trials: .*No module named 'kinfolk'; they wait"),
        (on_a_full_disk, "ray: node .*: .*No space left on device"),
    ],
)
def test_a_node_that_cannot_run_trials_is_one_line_and_nothing_is_lost(
    cluster: Any, tmp_path: Path, text: Path, task: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is a death: it would be one of every trial."""
    if task is None:
        monkeypatch.setattr(driver, "requirements", lambda: {"kinfolk": "9.9.9"})
    else:
        monkeypatch.setattr(ray_engine, "task", task)
    with pytest.raises(DataError, match=message):
        run(asked(tmp_path, text, on="ray", seeds=1), console=quiet())
    assert Queue(tmp_path).count() == {"waiting": 1, "running": 0}
    assert happened(tmp_path, "died") == {}


@pytest.mark.parametrize(
    ("cause", "deaths"),
    [(ModuleNotFoundError("No module named 'kinfolk'"), 0), ("lost", 1), ("node", 1), ("worker", 1)],
)
def test_what_a_task_raises_is_told_from_a_loss(tmp_path: Path, cause: Any, deaths: int) -> None:
    """Ray's own exceptions: those of the task's code stop the comparison, a lost node or object is a death."""
    errors = pytest.importorskip("ray.exceptions", reason="the extra [ray] is not installed")
    lost = errors.ObjectLostError("0" * 56, None, "")
    raised = {"lost": wrapped(errors, lost), "node": errors.NodeDiedError(""), "worker": errors.WorkerCrashedError()}
    error = wrapped(errors, cause) if isinstance(cause, Exception) else raised[cause]

    def get(reference: str) -> list[object]:
        if reference == "task":
            raise error
        return []

    queue, home = Queue(tmp_path), tmp_path / "trials" / "t"
    queue.create()
    home.mkdir(parents=True)
    (home / "trial.json").write_text("{}")
    queue.put([Ticket(name="t", room="trials")])
    claim, desk = queue.claim("driver.x"), Desk(home, "driver.x")
    desk.open()
    engine = ray_engine.RayEngine.__new__(ray_engine.RayEngine)
    engine.queue, engine.attempts = queue, {"driver.x": ray_engine.Attempt(claim, desk, "task")}
    engine.mailbox = SimpleNamespace(take=SimpleNamespace(remote=lambda: "letters"))
    engine.ray = SimpleNamespace(exceptions=errors, get=get, wait=lambda tasks, **_: (tasks, []))
    with contextlib.nullcontext() if deaths else pytest.raises(DataError, match="No module named 'kinfolk'; they wait"):
        engine._end(SimpleNamespace(queue=queue, screen=SimpleNamespace(note=lambda _: None)))
    assert queue.claim("next").ticket.deaths == deaths


def wrapped(errors: Any, cause: Exception) -> Exception:
    return errors.RayTaskError("task", f"Traceback\n{cause}", cause, "ray::task", 1, "127.0.0.1").as_instanceof_cause()


@pytest.mark.parametrize(("failures", "joins"), [(2, True), (3, False)])
def test_a_head_that_cannot_start_a_server_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, failures: int, joins: bool
) -> None:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
    calls: list[object] = []

    def init(**options: object) -> None:
        calls.append(options)
        if len(calls) <= failures:
            raise ConnectionAbortedError("Initialization failure from server:\nTraceback\nno server was started")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    if joins:
        assert ray_engine._connect("ray") == (ray, True)
    else:
        with pytest.raises(SpecError, match=r"cannot join the cluster: Initialization failure.*no server was started"):
            ray_engine._connect("ray")
    assert len(calls) == 3


@pytest.mark.parametrize("answer", ["nothing", "a refusal"])
def test_a_head_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
    released = threading.Event()

    def init(**options: object) -> None:
        if answer == "a refusal":
            raise RuntimeError("Version mismatch")
        released.wait()

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray_engine, "JOINING", 0.2)
    said = {"nothing": r"cannot join the cluster: no answer within 0 s", "a refusal": "Version mismatch"}[answer]
    with socket.create_server(("127.0.0.1", 0)) as head, pytest.raises(SpecError, match=said):
        ray_engine._connect(f"ray://127.0.0.1:{head.getsockname()[1]}")
    released.set()


def test_fractions_of_a_gpu_and_what_a_node_lacks(cluster: Any, tmp_path: Path, text: Path) -> None:
    from kinfolk.contests.fleet.ray_engine import RayEngine

    engine = RayEngine("ray", tmp_path, places.PerTrial.parse("gpus=0.5"), None)
    assert engine._room() == 1, "no node has a GPU: one task waits, for an autoscaler to see"
    node = cluster.add_node(**NODE, num_gpus=1)
    engine._counted = 0.0
    assert engine._room() == 3
    import ray

    seen = ray.get([ray.remote(where).options(num_cpus=0.5, num_gpus=0.5).remote() for _ in range(2)])
    assert [device for device, _ in seen] == ["0", "0"]
    cluster.remove_node(node)
    engine.close()


def where() -> tuple[str | None, str]:
    return os.environ.get("CUDA_VISIBLE_DEVICES"), sys.executable


@pytest.mark.parametrize(
    ("on", "message"),
    [("ray://127.0.0.1:1", "nothing answers there"), ("ray://nowhere", "expected ray://HOST:PORT")],
)
def test_a_wrong_address_is_one_line(tmp_path: Path, text: Path, on: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run(asked(tmp_path, text, on=on), console=quiet())
    assert Queue(tmp_path).count() == {"waiting": 2, "running": 0}
