"""A file or folder has its name only when it is whole and on disk."""

import os
from pathlib import Path
from typing import Any

import pytest

from kinfolk.core import durable


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is forced to disk and what is renamed, in order, by the name it has at that moment."""
    happened: list[tuple[str, str]] = []
    sync, replace = durable.sync, Path.replace

    def note_sync(path: Path) -> None:
        happened.append(("sync", path.name))
        sync(path)

    def note_replace(self: Path, target: Path) -> Path:
        happened.append(("rename", self.name))
        return replace(self, target)

    monkeypatch.setattr(durable, "sync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    return happened


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, events: list[tuple[str, str]]) -> None:
    durable.write(tmp_path / "a", "text")
    assert events == [("sync", "a.part"), ("rename", "a.part"), ("sync", tmp_path.name)]
    assert (tmp_path / "a").read_text() == "text"


def test_a_folder_and_all_in_it_are_on_disk_before_it_has_its_name(
    tmp_path: Path, events: list[tuple[str, str]]
) -> None:
    with durable.folder(tmp_path / "f") as aside:
        (aside / "inner").mkdir()
        (aside / "inner" / "x").write_text("x")
        (aside / "y").write_text("y")
    renamed = events.index(("rename", "f.part"))
    assert {("sync", name) for name in ("inner", "x", "y", "f.part")} <= set(events[:renamed])
    assert events[renamed + 1 :] == [("sync", tmp_path.name)]


def test_sync_forces_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced = []
    monkeypatch.setattr(os, "fsync", lambda handle: forced.append(os.fstat(handle).st_ino))
    (tmp_path / "a").write_text("a")
    durable.sync(tmp_path / "a")
    assert forced == [(tmp_path / "a").stat().st_ino]


def fail_in(make: Any, path: Path) -> None:
    with make(path) as aside:
        (aside / "x" if aside.is_dir() else aside).write_text("new")
        raise KeyError


@pytest.mark.parametrize("make", [durable.appearing, durable.folder])
def test_what_fails_leaves_nothing_and_replaces_nothing(tmp_path: Path, make: Any) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyError):
        fail_in(make, tmp_path / "a")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"
