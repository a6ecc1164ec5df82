"""kill -9 at any moment, go on, and nothing shows: real processes, real signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.toy import job, same_run, start

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a hundred runs that force everything to disk take minutes."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else tmp_path))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_killed_before_any_change_of_the_disk(fast_path: Path) -> None:
    command = [sys.executable, "-m", "tests.train.victim", str(fast_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    # creating the folder, rows, four checkpoints with their renames, links, pruning, and the result
    assert report["touches"] > 30
    assert report["wrong"] == []


def test_killed_in_the_middle_of_a_row(tmp_path: Path) -> None:
    start(tmp_path / "whole", job())
    start(tmp_path / "cut", job())
    roll_back(tmp_path / "cut", to=8)
    with (tmp_path / "cut/metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "loss": 1.2')
    start(tmp_path / "cut", job())
    assert same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("cut_at", [0, 1, 100, 10_000])
def test_killed_in_the_middle_of_a_checkpoint_file(tmp_path: Path, cut_at: int) -> None:
    start(tmp_path / "whole", job())
    start(tmp_path / "cut", job())
    newest = tmp_path / "cut/checkpoints/step-000012"
    newest.rename(newest.with_name("step-000012.part"))
    roll_back(tmp_path / "cut", to=8)
    file = newest.with_name("step-000012.part") / "optimiser.safetensors"
    os.truncate(file, min(cut_at, file.stat().st_size - 1))
    (newest.with_name("step-000012.part") / "state.json").unlink()
    start(tmp_path / "cut", job())
    assert same_run(tmp_path / "whole", tmp_path / "cut")
    assert not list((tmp_path / "cut").rglob("*.part"))


def roll_back(out: Path, to: int) -> None:
    """Make a finished run look as if it had been killed after a checkpoint."""
    for path in (out / "checkpoints").glob("step-0000??"):
        if int(path.name[-6:]) > to:
            shutil.rmtree(path)
    (out / "result.json").unlink()


def test_killed_at_a_moment_nobody_chose(tmp_path: Path) -> None:
    out = str(tmp_path / "cut")
    call = f"start(Path({out!r}), job(steps=150, save_every=25))"
    script = f"from pathlib import Path; from tests.train.toy import job, start; {call}"
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    metrics = tmp_path / "cut/metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size > 9000):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "cut/result.json").exists()
    start(tmp_path / "cut", job(steps=150, save_every=25))
    start(tmp_path / "whole", job(steps=150, save_every=25))
    assert same_run(tmp_path / "whole", tmp_path / "cut")
