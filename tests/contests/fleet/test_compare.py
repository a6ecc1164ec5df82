"""Comparisons through workers give the results of local ones, trial by trial."""

import io
import json
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kinfolk.contests.fleet.queue import Queue
from kinfolk.contests.fleet.worker import Worker
from kinfolk.contests.run import run
from kinfolk.contests.settings import Settings
from kinfolk.core.console import Console
from kinfolk.core.errors import SpecError, TrainingError
from tests.contests.fleet.killing import trained

TOY = ("n_layers=1", "d_model=16", "n_heads=2", "d_ff=32", "training.batch_size=4", "training.length=32")


def settings(out: Path, **more: object) -> Settings:
    chosen: dict[str, object] = {"data": "copy", "budget": "2k-tokens", "seeds": 2, "tune": "off", "match": "none"}
    chosen |= {"contestants": ("gpt", "gpt2"), "assignments": TOY, "out": out, "jobs": 1, "threads": 1, "nice": 0}
    return Settings(**(chosen | more))


def quiet() -> Console:
    return Console(file=io.StringIO())


def scores(comparison: object) -> dict[str, list[object]]:
    return {
        name: [(o.seed, o.key, o.status, o.steps, o.curve[-1].valid) for o in outcomes]
        for name, outcomes in comparison.outcomes.items()
    }


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_workers_and_a_started_command_give_the_local_results(tmp_path: Path) -> None:
    local = run(settings(tmp_path / "local"), console=quiet())
    home = tmp_path / "shared"
    Queue(home).create()
    workers = [threading.Thread(target=Worker(Queue(home), lambda _: None).work, args=(280.0, n)) for n in (2, 1, 1)]
    for worker in workers:
        worker.start()
    pulled = run(settings(home, on="workers"), console=quiet())
    for worker in workers:
        worker.join(60)
    assert scores(pulled) == scores(local)
    assert trained(home) == trained(tmp_path / "local"), "to the bit, step by step"
    command = f"{shlex.quote(sys.executable)} -m kinfolk work {{dir}} --wait 280s"
    started = run(settings(tmp_path / "started", on=command), console=quiet())
    assert scores(started) == scores(local)


def test_a_command_that_fails_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    code = "print('no route to host'); raise SystemExit(7)"
    failing = shlex.join([sys.executable, "-c", code, "{dir}"])
    with pytest.raises(TrainingError, match=r"exit code 7; its trials wait \(no route to host\)"):
        run(settings(tmp_path, on=failing), console=quiet())
    assert Queue(tmp_path).count() == {"waiting": 4, "running": 0}
    with pytest.raises(SpecError, match="cannot start"):
        run(settings(tmp_path, on="no-such-command {dir}"), console=quiet())


@pytest.mark.parametrize(
    ("on", "budget", "message"),
    [("cloud", "2k-tokens", "known: local, workers"), ("workers", "10s", "seconds are not equal work")],
)
def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path, on: str, budget: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        settings(tmp_path, on=on, budget=budget)


@pytest.mark.slow
def test_progress_for_machines_is_json_line_by_line(tmp_path: Path) -> None:
    """Also what is said before the first trial, and whatever a started command writes."""
    command = f"{shlex.quote(sys.executable)} -m kinfolk work {{dir}} --wait 280s"
    options = "--json --data copy --budget 2k-tokens --seeds 1 --tune off --match none --nice 0"
    kin = [sys.executable, "-m", "kinfolk", "compare", "gpt2", *options.split(), "--on", command]
    kin += ["--out", str(tmp_path / "a")]
    done = subprocess.run(
        [*kin, *(word for name in TOY for word in ("--set", name))], capture_output=True, text=True, check=True
    )
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert {"note", "started", "finished"} <= {event["event"] for event in events}
    assert "gpt2 on copy" in events[0]["text"]
    assert json.loads(done.stdout)["title"] == "gpt2 on copy"
    assert "begins" in (tmp_path / "a" / "queue" / "command.txt").read_text()
