"""A prepared folder says what is in it, and is refused when that is not so."""

import json
from pathlib import Path
from unittest import mock

import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import prepare
from kinfolk.data.preparing.manifest import open_prepared, read_manifest
from tests.data.made import prose


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text(prose(20_000), encoding="utf-8")
    prepare([tmp_path / "a.txt"], tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("name", ["train-00000.bin", "train-00000.idx", "valid-00000.bin", "tokenizer.json"])
def test_damage_is_seen_and_named(prepared: Path, name: str) -> None:
    path = prepared / name
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    with pytest.raises(DataError, match=rf"{name}: damaged: {len(raw) - 1} bytes, but the manifest says {len(raw)}"):
        open_prepared(prepared)
    path.write_bytes(raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:])
    with pytest.raises(DataError, match=f"{name}: damaged: its content"):
        open_prepared(prepared)
    path.unlink()
    with pytest.raises(DataError, match=f"{name}: missing"):
        open_prepared(prepared)
    path.write_bytes(raw)
    assert open_prepared(prepared).split("train").n_tokens > 0


def test_large_data_is_hashed_only_when_asked(prepared: Path) -> None:
    path = prepared / "train-00000.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with mock.patch("kinfolk.data.preparing.manifest._HASHED", 0):
        open_prepared(prepared)
        with pytest.raises(DataError, match="damaged"):
            open_prepared(prepared, verify=True)


def test_a_manifest_of_another_version(prepared: Path) -> None:
    manifest = json.loads((prepared / "manifest.json").read_text())
    (prepared / "manifest.json").write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(DataError, match="version 99 of the format; this program reads version 1"):
        open_prepared(prepared)
    (prepared / "manifest.json").write_text(json.dumps(manifest | {"surprise": 1}))
    with pytest.raises(DataError, match="damaged"):
        read_manifest(prepared)
    (prepared / "manifest.json").write_text('{"name": "something else"}')
    with pytest.raises(DataError, match="not the manifest of prepared data"):
        open_prepared(prepared)
    (prepared / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        open_prepared(prepared)


def test_counts_that_do_not_fit_the_files(prepared: Path) -> None:
    manifest = json.loads((prepared / "manifest.json").read_text())
    manifest["splits"]["train"]["shards"][0][1] += 1
    (prepared / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="the counts of train-00000 do not fit"):
        open_prepared(prepared)
