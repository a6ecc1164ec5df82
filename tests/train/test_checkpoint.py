"""A checkpoint is whole or it is not there, and a damaged one is noticed."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from kinfolk.core.errors import CheckpointError, TrainingError
from kinfolk.runs import checkpoint, durable
from kinfolk.runs.checkpoint import Checkpoints, DamagedCheckpoint


def files(step: int) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"w": torch.full((3, 5), float(step))}, "optimiser": {"exp_avg/w": torch.arange(7) + step}}


def saved(folder: Path, *steps: int, keep_last: int = 9) -> Checkpoints:
    checkpoints = Checkpoints(folder / "checkpoints", keep_last)
    for step in steps:
        checkpoints.save(step, files(step), {"tokens": 10 * step})
    return checkpoints


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    newest = saved(tmp_path, 5, 10).newest()
    assert newest is not None
    assert (newest.step, newest.state["tokens"]) == (10, 100)
    assert torch.equal(newest.tensors("model")["w"], files(10)["model"]["w"])
    assert torch.equal(newest.tensors("optimiser")["exp_avg/w"], files(10)["optimiser"]["exp_avg/w"])
    assert newest.tensors("objective") == {}
    assert Checkpoints(tmp_path / "nothing").newest() is None


def test_only_safetensors_and_json(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    names = {path.name for path in (tmp_path / "checkpoints/step-000005").iterdir()}
    assert names == {"model.safetensors", "optimiser.safetensors", "state.json"}


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    for step in range(1, 7):
        checkpoints.save(step, files(step), {})
        if step == 2:
            checkpoints.mark_best(2)
        checkpoints.prune()
    assert sorted(checkpoints.steps()) == [2, 5, 6]
    assert checkpoints.best().step == 2
    assert (tmp_path / "best/model.safetensors").exists()
    checkpoints.mark_best(6)
    checkpoints.prune()
    assert sorted(checkpoints.steps()) == [5, 6]
    checkpoints.mark_best(3)
    assert checkpoints.best() is None


DAMAGE = {
    "truncated weights": lambda path: os.truncate(path / "model.safetensors", 40),
    "one flipped bit": lambda path: flip(path / "optimiser.safetensors"),
    "missing weights": lambda path: (path / "model.safetensors").unlink(),
    "missing state": lambda path: (path / "state.json").unlink(),
    "empty state": lambda path: (path / "state.json").write_text(""),
    "half a state": lambda path: os.truncate(path / "state.json", 30),
    "state is a list": lambda path: (path / "state.json").write_text("[]"),
    "changed number": lambda path: edit(path / "state.json", tokens=11),
    "another format": lambda path: edit(path / "state.json", format=99),
}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)


def edit(path: Path, **changes: int) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_noticed_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    checkpoints = saved(tmp_path, 5, 10)
    DAMAGE[damage](checkpoints.folder / "step-000010")
    with pytest.warns(DamagedCheckpoint, match="step-000010.*going on from step 5"):
        newest = checkpoints.newest()
    assert newest.step == 5
    # set aside, so that the run can write step 10 again
    assert checkpoints.steps() == [5]
    assert checkpoints.save(10, files(10), {}).exists()


def test_no_whole_checkpoint_is_an_error(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 5, 10)
    for step in (5, 10):
        (checkpoints.folder / checkpoint.name(step) / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        checkpoints.newest()


def test_what_a_killed_process_left_is_ignored_and_removed(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 5)
    part = checkpoints.folder / "step-000010.part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"half")
    assert checkpoints.newest().step == 5
    checkpoints.save(10, files(10), {})
    assert checkpoints.newest().step == 10
    part.mkdir()
    checkpoints.prune()
    assert not part.exists()


def test_full_disk_is_said_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 5)

    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"the beginning")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(TrainingError, match="step-000010: cannot be written: the disk is full"):
        checkpoints.save(10, files(10), {})
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000005"]
    assert checkpoints.newest().step == 5


def test_a_disk_with_too_little_room_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 5)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(TrainingError, match="the disk is full: the checkpoint needs"):
        checkpoints.save(10, files(10), {})
    assert checkpoints.newest().step == 5


def test_a_refused_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    durable.write(tmp_path / "a.json", "old")

    def refuse(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(TrainingError, match="the disk is full"):
        durable.write(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "old"


def test_the_kernel_refuses_to_write_more(tmp_path: Path) -> None:
    """A real refusal in the middle of a file, by a limit on file size: no patched function in the way."""
    checkpoints = saved(tmp_path, 5)
    script = textwrap.dedent(f"""
        import resource, signal, torch
        from pathlib import Path
        from kinfolk.core.errors import TrainingError
        from kinfolk.runs.checkpoint import Checkpoints
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            Checkpoints(Path({str(checkpoints.folder)!r})).save(10, {{"model": {{"w": torch.zeros(9999)}}}}, {{}})
        except TrainingError as error:
            assert "cannot be written" in str(error), error
            raise SystemExit(3)
    """)
    assert hasattr(signal, "SIGXFSZ")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 3
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000005"]
    assert checkpoints.newest().step == 5
