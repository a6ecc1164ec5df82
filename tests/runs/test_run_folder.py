"""The run folder is made in one move, never overwritten, and held by one process at a time."""

from pathlib import Path

import pytest
import torch

from kinfolk.core.errors import CheckpointError, TrainingError
from kinfolk.runs import folder
from kinfolk.runs.metadata import DataSource, Metadata, Precision

RUN = Metadata(seed=1, data=DataSource(name="copy"), fingerprint="f")


def test_made_and_read_back(tmp_path: Path) -> None:
    written = RUN.with_origin()
    folder.create(tmp_path / "deep/run", "a = 1\n", written)
    assert folder.read(tmp_path / "deep/run") == written
    assert written.versions.torch == torch.__version__
    assert written.command.startswith("kin")
    folder.update(tmp_path / "deep/run", choice=Precision(precision="bf16"))
    assert folder.read(tmp_path / "deep/run") == written.replace(choice=Precision(precision="bf16"))


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    folder.create(tmp_path / "run", "a = 1\n", RUN)
    assert folder.read(tmp_path / "run").seed == 1


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "run"
    folder.create(out, "a = 1\n", RUN)
    with pytest.raises(TrainingError, match=r"this run exists and was not finished; `kin resume .*run` goes on"):
        folder.create(out, "a = 1\n", RUN)
    (out / "result.json").write_text("{}")
    with pytest.raises(TrainingError, match="this run exists and is finished"):
        folder.create(out, "a = 1\n", RUN)
    for spec, run in (("a = 2\n", RUN), ("a = 1\n", RUN.replace(seed=2)), ("a = 1\n", RUN.replace(fingerprint="g"))):
        with pytest.raises(TrainingError, match="holds another run; choose another --out"):
            folder.create(out, spec, run)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(TrainingError, match="exists and is not a run"):
        folder.create(tmp_path / "mine", "a = 1\n", RUN)
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"not a run folder: it has no run\.toml"):
        folder.read(tmp_path)
    (tmp_path / "run.toml").write_text("a = ")
    with pytest.raises(CheckpointError, match=r"run\.toml: not valid TOML"):
        folder.read(tmp_path)
    assert folder.result(tmp_path) is None


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(TrainingError, match="another process is working on this run")
    with folder.locked(tmp_path), refused, folder.locked(tmp_path):
        pass
    with folder.locked(tmp_path):
        assert (tmp_path / ".lock").exists()
