"""A real Slurm on the loopback interface: an array of workers gives the local results, also when jobs are killed."""

import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinfolk.contests.fleet.queue import Queue
from kinfolk.contests.run import run
from kinfolk.core.errors import SpecError
from tests.contests.fleet import slurm
from tests.contests.fleet.killing import ended, spared, trained, until_killed
from tests.contests.fleet.test_compare import quiet, scores, settings

needs_slurm = pytest.mark.skipif(bool(slurm.lacking()), reason=slurm.lacking())


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm.running(tmp_path_factory.mktemp("slurm")) as file, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(file))
        yield file


def asked(out: Path, **more: object) -> Any:
    return settings(out, **({"contestants": ("gpt2",), "budget": "8k-tokens"} | more))


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kills", "seeds"), [(0, 2), (10, 6)])
def test_an_array_of_workers_gives_the_local_results(conf: Path, tmp_path: Path, kills: int, seeds: int) -> None:
    chance, killed = random.Random(0), list[object]()
    local = run(asked(tmp_path / "local", seeds=seeds), console=quiet())

    def compare(turn: int) -> None:
        home, stop = tmp_path / f"shared{turn}", threading.Event()

        def kill() -> None:
            """Kill jobs while trials run that may lose one more worker."""
            while len(killed) < kills and not stop.wait(chance.uniform(0.5, 5)):
                ids = slurm_jobs()
                if spared(home) and ids:
                    victim = chance.choice(ids)
                    # half are preempted, which gives them a moment, and half are killed at once
                    how = ["scontrol", "requeue", victim] if len(killed) % 2 else ["scancel", "--signal=KILL", victim]
                    if subprocess.run(how, check=False, capture_output=True).returncode == 0:
                        killed.append(how)

        thread = threading.Thread(target=kill)
        thread.start()
        try:
            more = {"on": "slurm", "per_trial": "cores=1,hours=0.5", "jobs": 2, "seeds": seeds}
            comparison = run(asked(home, **more), console=quiet())
        finally:
            stop.set()
            thread.join()
        assert scores(comparison) == scores(local)
        assert trained(home) == trained(tmp_path / "local"), "to the bit, step by step"
        # a worker that is killed between publishing and its journal has ended a trial that no journal names
        assert set(ended(home).values()) <= {1}
        assert Queue(home).count() == {"waiting": 0, "running": 0}
        deadline = time.monotonic() + 120
        while slurm_jobs():
            assert time.monotonic() < deadline, "workers are cancelled with the comparison"
            time.sleep(1)

    until_killed(kills, killed, compare)


def slurm_jobs() -> list[str]:
    command = ["squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_partition_that_does_not_exist_is_one_line(conf: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"slurm: the workers were refused.*partition"):
        run(asked(tmp_path, on="slurm", per_trial="partition=nowhere"), console=quiet())
    assert Queue(tmp_path).count() == {"waiting": 2, "running": 0}


def test_a_host_without_slurm_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="the extra [slurm] is not installed")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SpecError, match="there is no sbatch on this host"):
        run(asked(tmp_path, on="slurm"), console=quiet())
    assert Queue(tmp_path).count() == {"waiting": 2, "running": 0}


def test_a_missing_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for on, module in (("slurm", "submitit"), ("ray", "ray")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(SpecError, match=rf"--on {on} needs an extra: pip install 'kinfolk\[{on}\]'"):
            run(asked(tmp_path, on=on), console=quiet())
    assert Queue(tmp_path).count() == {"waiting": 2, "running": 0}
