"""metrics.jsonl survives a kill, and TensorBoard gets the same rows."""

import json
import sys
from pathlib import Path

import pytest

from kinfolk.core.errors import DataError
from kinfolk.train.metrics import MetricsLog, read


def written(path: Path, *steps: int) -> None:
    metrics = MetricsLog(path, tensorboard=False)
    for step in steps:
        metrics.write({"step": step, "loss": step / 3})
    metrics.close()


def test_rows_are_there_as_soon_as_they_are_written(tmp_path: Path) -> None:
    metrics = MetricsLog(tmp_path / "m", tensorboard=False)
    metrics.write({"step": 1, "loss": 0.1})
    assert list(read(tmp_path / "m")) == [{"step": 1, "loss": 0.1}]
    metrics.close()


@pytest.mark.parametrize("torn", ["", "{", '{"step": 4, "loss": 1.2', '{"step": 4, "loss": 1.2}'])
def test_half_a_line_and_later_rows_are_dropped(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "m"
    written(path, 1, 2, 3)
    with path.open("a") as file:
        file.write(torn)
    metrics = MetricsLog.resume(path, 2, tensorboard=False)
    metrics.write({"step": 3, "loss": 9.0})
    metrics.close()
    assert [(row["step"], row["loss"]) for row in read(path)] == [(1, 1 / 3), (2, 2 / 3), (3, 9.0)]
    assert path.read_text().endswith("\n")


def test_half_a_line_in_the_middle_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_text('{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(DataError, match="m:2: not a JSON object"):
        list(read(path))


def test_a_run_without_rows_can_go_on(tmp_path: Path) -> None:
    MetricsLog.resume(tmp_path / "m", 0, tensorboard=False).close()
    assert list(read(tmp_path / "m")) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (1, 2):
        metrics.write({"step": step, "loss": step / 2, "valid": {"next-token": 3.0}, "mfu": None})
    metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"loss", "valid/next-token"}
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.5), (2, 1.0)]


def test_without_tensorboard_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    metrics = MetricsLog(tmp_path / "metrics.jsonl")
    metrics.write({"step": 1, "loss": 0.5})
    metrics.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": 0.5}
    assert not (tmp_path / "tensorboard").exists()
