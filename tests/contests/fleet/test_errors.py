"""What goes wrong between hosts is one clear line, and nothing is lost."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfolk.cli.main import main
from kinfolk.contests.fleet import hosts
from kinfolk.contests.fleet import worker as module
from kinfolk.contests.fleet.places import PerTrial
from kinfolk.contests.fleet.queue import Queue, Ticket
from kinfolk.contests.fleet.status import status
from kinfolk.contests.fleet.worker import Worker
from kinfolk.contests.outcome import CRASHED, DONE, Outcome
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import Trial
from kinfolk.core.errors import DataError, SpecError
from tests.contests.fleet.test_worker import ENDS, fake, job

__all__ = ["fake"]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    made = Queue(tmp_path)
    made.create()
    return made


def test_a_worker_without_the_data_says_so_and_takes_nothing(queue: Queue, tmp_path: Path) -> None:
    for name, source, fingerprint in (
        ("a", {"name": "/nowhere/my.txt"}, "1234567890abcdef"),
        ("b", {"name": "copy"}, "x"),
    ):
        trial = Trial(name=name, seed=0, recipe={}, data=source, fingerprint=fingerprint)
        trial.write(tmp_path / "trials" / name)
        queue.put([Ticket(name=name, room="trials", requires={"data": fingerprint})])
    lines: list[str] = []
    with pytest.raises(
        DataError, match=r"my.txt' 1234567890ab is required, this worker cannot open it: .*no such file"
    ):
        Worker(queue, lines.append).work()
    pattern = r"data 'copy' x is required, this worker has [0-9a-f]{12}: its content differs"
    assert any(re.fullmatch(pattern, line) for line in lines)
    assert queue.count() == {"waiting": 2, "running": 0}


def test_a_full_disk_gives_the_trial_back(fake: Path) -> None:
    reason = "/shared/x: cannot be written: the disk is full. What was written before is intact"
    job(fake, "one", ENDS.format(r={"name": "g", "seed": 0, "status": CRASHED, "reason": reason, "curve": []}))
    queue = Queue(fake)
    queue.create()
    queue.put([Ticket(name="one", room="trials")])
    with pytest.raises(DataError, match="the disk is full"):
        Worker(queue, lambda _: None, heartbeat=0.1).work()
    assert queue.count() == {"waiting": 1, "running": 0}
    assert Outcome.read(fake / "trials" / "one") is None


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root to mount a small file system")
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False)
    if done.returncode:
        pytest.skip("cannot mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_shared_folder_that_is_full_is_one_line(small: Path) -> None:
    queue = Queue(small)
    queue.create()
    with pytest.raises(
        DataError, match="cannot be written: No space left on device; what was written before is intact"
    ):
        queue.put([Ticket(name=f"t{i}", room="trials") for i in range(100)])
    n_waiting = queue.count()["waiting"]
    assert 0 < n_waiting < 100
    assert queue.claim("w") is not None


def test_a_folder_that_fills_up_while_trials_are_planned_says_how_to_go_on(small: Path) -> None:
    from kinfolk.contests.run import run
    from kinfolk.core.errors import TrainingError
    from tests.contests.fleet.test_compare import quiet, settings

    home = small / "a"
    home.mkdir()
    (small / "other").write_bytes(bytes(44 << 10))
    with pytest.raises(TrainingError, match=r"the disk is full\. What was written .* or a comparison's own command"):
        run(settings(home, on="workers", seeds=8), console=quiet())
    assert list((home / "trials").glob("*/trial.json"))
    (small / "other").unlink()


def test_a_shared_folder_that_became_read_only_is_one_line(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = Queue(small)
    queue.create()
    queue.put([Ticket(name="one", room="trials")])
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with pytest.raises(DataError, match="workers cannot share this folder: Read-only file system"):
        queue.create()
    assert main(["work", str(small)]) == 2
    assert "cannot be written: Read-only file system; what was written before is intact" in capsys.readouterr().err
    assert queue.count() == {"waiting": 1, "running": 0}


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_clocks_that_differ_are_said_and_change_nothing(
    fake: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    job(fake, "one")
    queue = Queue(fake)
    queue.create()
    queue.put([Ticket(name="one", room="trials")])
    real = time.time
    monkeypatch.setattr(hosts.time, "time", lambda: real() + ahead)
    lines: list[str] = []
    assert Worker(queue, lines.append, heartbeat=0.1).work() == 1
    assert sum(f"clock is {ahead:+,.0f} s from" in line for line in lines) == 1
    assert Outcome.read(fake / "trials" / "one").status == DONE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu=1", "unknown 'gpu'.*gpus"),
        ("cores=many", "expects a number, found 'many'"),
        ("cores=0", "at least one core"),
        ("hours=-1", "no negative number"),
    ],
)
def test_resources_are_checked_by_name(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        PerTrial.parse(text)
    with pytest.raises(SpecError, match="give --on as well"):
        Settings(per_trial="cores=2")
    with pytest.raises(SpecError, match=r"gpus=0\.5: Slurm gives whole GPUs"):
        Settings(per_trial="gpus=0.5", on="slurm", budget="1k-tokens")
    assert PerTrial.parse("gpus=0.5,cores=4,hours=2") == PerTrial(gpus=0.5, cores=4, hours=2.0)


def test_the_status_of_a_folder_from_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = Queue(tmp_path)
    queue.create()
    queue.put([Ticket(name=f"t{i}", room="trials") for i in range(3)])
    claim = queue.claim("w")
    run = tmp_path / "trials" / claim.ticket.name / "work@w" / "run"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 5, "tokens": 10, "tokens_per_second": 250.0}\n')
    for name, ending, seconds in (("x", DONE, 3600.0), ("y", CRASHED, 0.0)):
        (tmp_path / "trials" / name).mkdir()
        Outcome(name=name, seed=0, status=ending, seconds=seconds, threads=2).write(tmp_path / "trials" / name)
    assert main(["compare", "--status", str(tmp_path), "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    expected = {"queued": 2, "running": 1, "finished": 1, "failed": 1, "tokens_per_second": 250.0, "core_hours": 2.0}
    assert expected.items() <= numbers.items()
    # two wait for the one that runs, which is half done
    assert numbers["seconds_left"] == pytest.approx(2.5 * 3600)
    assert main(["compare", "--status", str(tmp_path)]) == 0
    assert "2 queued, 1 running, 1 finished, 1 failed, 250 tokens/s, 2.00 core hours" in capsys.readouterr().out
    assert main(["compare", "--status", str(tmp_path / "queue")]) == 2
    assert "holds no comparison" in capsys.readouterr().err


def test_the_status_of_a_comparison_of_local_processes(tmp_path: Path) -> None:
    for name in ("runs", "waits", "stopped", "ended"):
        (tmp_path / "trials" / name / "run").mkdir(parents=True)
        (tmp_path / "trials" / name / "trial.json").write_text("{}")
    for name in ("runs", "stopped"):
        (tmp_path / "trials" / name / "stdout.txt").touch()
        metrics = tmp_path / "trials" / name / "run" / "metrics.jsonl"
        metrics.write_text('{"step": 5, "tokens": 10, "tokens_per_second": 250.0}\n')
    for file in (tmp_path / "trials" / "stopped").rglob("*"):
        os.utime(file, (time.time() - 600,) * 2)
    Outcome(name="x", seed=0, status=DONE, seconds=100.0, threads=1).write(tmp_path / "trials" / "ended")
    expected = {"queued": 2, "running": 1, "finished": 1, "failed": 0, "tokens_per_second": 250.0}
    plain = status(tmp_path).plain()
    assert expected.items() <= plain.items()
    assert plain["seconds_left"] == pytest.approx(250.0)


def test_local_processes_do_not_join_workers(tmp_path: Path) -> None:
    from kinfolk.contests.run import run
    from kinfolk.core.errors import KinfolkError
    from tests.contests.fleet.test_compare import quiet, settings

    queue = Queue(tmp_path)
    queue.create()
    queue.put([Ticket(name="t", room="trials")])
    queue.claim("elsewhere")
    with pytest.raises(KinfolkError, match=r"1 trials are held by workers .elsewhere."):
        run(settings(tmp_path), console=quiet())
    assert module.mismatches({"kinfolk": "9"}) != []


@pytest.mark.parametrize(
    "verb",
    [
        "compare gpt2 --budget 1k-tokens",
        "compare --suite lra-small --budget 1k-tokens",
        "compare --table narang --budget 1k-tokens",
        "compare gtrxl --env cue-recall --budget 1k-tokens",
        "gate gpt gpt2 --budget 1k-tokens",
        "scale gpt2",
    ],
)
def test_every_verb_that_hands_out_trials_takes_a_place(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb.split(), "--on", "slrum"]) == 2
    assert "on: unknown 'slrum' (known: local, workers, slurm, ray" in capsys.readouterr().err
    assert main([*verb.split(), "--on", "workers", "--per-trial", "gpu=1"]) == 2
    assert "per-trial: unknown 'gpu'" in capsys.readouterr().err
