"""A comparison with real processes, killed in its search and in its verdict, ends like one that nothing touched."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kinfolk.contests import trial, trials
from kinfolk.contests.job import Job
from kinfolk.contests.run import run
from kinfolk.contests.schedule import lock
from kinfolk.contests.settings import Settings
from kinfolk.core.console import Console
from kinfolk.core.errors import KinfolkError

TOY = ("n_layers=1", "d_model=16", "n_heads=2", "d_ff=32", "training.batch_size=4", "training.length=32")
NAMES, DATA, BUDGET = ("gpt2", "gpt"), "stdlib:megabytes=1", "2k-tokens"
MOMENTS = (2, 13, 24)
"""Trials that have ended when the command is killed: in the ladder of ten, in the finals, in the verdict."""

PATIENCE = 300.0


def here(jobs: Sequence[Job], *_: object) -> None:
    """Run trials in this process: cheap, and another way to the same numbers."""
    for job in jobs:
        outcome = trial.run(trial.Trial.read(job.folder), job.folder)
        assert outcome is not None
        outcome.write(job.folder)


def wait_until(is_so: Any, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None
        time.sleep(0.02)


def is_free(folder: Path) -> bool:
    """Whether the trials that outlived the command have saved and gone."""
    try:
        with lock(folder):
            return True
    except KinfolkError:
        return False


def n_ended(folder: Path) -> int:
    return len(list(folder.glob("trials/*/result.json")))


def numbers(folder: Path) -> dict[str, Any]:
    """What a comparison found, without stopwatch readings."""
    plain = json.loads((folder / "results.json").read_text())
    kept = (
        "name",
        "rank",
        "mark",
        "final",
        "as_is",
        "difference",
        "low",
        "high",
        "p",
        "chance",
        "lr",
        "seeds",
        "flags",
    )
    trials = [(t["name"], t["seed"], t["key"], t["steps"], t["tokens"], t["test"]) for t in plain["trials"]]
    trials += [
        (t["name"], t["seed"], t["key"], [(p["step"], p["valid"]) for p in t["curve"]])
        for kind in ("trials", "as_is", "searched", "retried")
        for t in plain[kind]
    ]
    tried = {row["name"]: row["rates"]["tried"] for row in plain["rows"]}
    return {"rows": [{name: row[name] for name in kept} for row in plain["rows"]], "trials": trials, "tried": tried}


@pytest.mark.slow
@pytest.mark.long
def test_killed_in_the_search_and_in_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    sets = [word for text in TOY for word in ("--set", text)]
    options = f"--data {DATA} --budget {BUDGET} --seeds 3 --jobs 2 --threads 1 --nice 0 --out {killed}"
    command = [sys.executable, "-m", "kinfolk", "compare", *NAMES, *options.split(), *sets]
    for moment in MOMENTS:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda moment=moment: n_ended(killed) >= moment, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: is_free(killed))
    assert not (killed / "results.json").exists()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
    monkeypatch.setattr(trials, "run_all", here)
    asked = Settings(
        contestants=NAMES, data=DATA, budget=BUDGET, seeds=3, jobs=2, threads=1, nice=0, assignments=TOY, out=whole
    )
    run(asked, console=Console(file=io.StringIO()))
    assert numbers(killed) == numbers(whole)
    assert len(numbers(whole)["trials"]) > 30
