"""A folder is refused when a file that decides its result is not what was written, and can be accepted as changed."""

import hashlib
import json
from pathlib import Path

import pytest

from kinfolk.core import contained, manifest
from kinfolk.core.errors import CheckpointError

FILES = ("spec.toml", "run.toml", "tokenizer.json", "model.safetensors")


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text(f"content of {name}")
    manifest.create(tmp_path)
    return tmp_path


def damage(file: Path, how: str) -> None:
    content = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    elif how == "truncated":
        file.write_bytes(content[:-1])
    elif how == "empty":
        file.write_bytes(b"")
    else:
        content[3] ^= 1
        file.write_bytes(content)


@pytest.mark.parametrize("how", ["flipped", "truncated", "empty", "missing"])
@pytest.mark.parametrize("name", FILES[:3])
def test_a_damaged_file_is_refused_until_it_is_accepted(folder, name, how):
    manifest.check(folder, FILES[:3])
    damage(folder / name, how)
    with pytest.raises(CheckpointError, match=rf"{name}: is .*kin resume .* --accept-changes"):
        manifest.check(folder, FILES[:3])
    assert manifest.accept(folder) == [name]
    manifest.check(folder, FILES[:3])
    (change,) = manifest.read(folder).changes
    assert set(change["files"]) == {name}


def test_a_file_that_was_added_is_refused(folder):
    (folder / "start.safetensors").write_text("other weights to begin with")
    with pytest.raises(CheckpointError, match=r"start\.safetensors: is not what"):
        manifest.check(folder, ("start.safetensors",))


def test_weights_are_hashed_while_they_are_read(folder):
    with manifest.verifying(folder / "model.safetensors"):
        pass
    damage(folder / "model.safetensors", "flipped")
    with pytest.raises(CheckpointError, match="SHA-256 differs"), manifest.verifying(folder / "model.safetensors"):
        pass
    # damage explains an error while reading; without damage the error is the reader's own
    with pytest.raises(CheckpointError, match="SHA-256 differs"), manifest.verifying(folder / "model.safetensors"):
        raise ValueError("odd header")
    manifest.accept(folder)
    with pytest.raises(ValueError, match="odd header"), manifest.verifying(folder / "model.safetensors"):
        raise ValueError("odd header")


def test_a_kill_while_a_file_is_replaced_leaves_a_folder_that_opens(folder):
    text = "new content"
    replaced = manifest.replacing(folder, "run.toml", hashlib.sha256(text.encode()).hexdigest())
    replaced.__enter__()
    # killed before or after the file is written
    manifest.check(folder, FILES[:3])
    (folder / "run.toml").write_text(text)
    manifest.check(folder, FILES[:3])
    replaced.__exit__(None, None, None)
    manifest.check(folder, FILES[:3])
    assert len(manifest.read(folder).files["run.toml"]) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1, "files": {}, "changes": [], "digest": "0"}'])
def test_a_damaged_manifest_is_said_to_be_that(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged"):
        manifest.check(folder)
    manifest.accept(folder)
    manifest.check(folder, FILES[:3])


def test_a_folder_of_an_earlier_version_opens_with_a_word(folder):
    (folder / "manifest.json").unlink()
    with pytest.warns(manifest.NoManifest, match="has no manifest.json"):
        manifest.check(folder)
    assert json.dumps(manifest.accept(folder)) == json.dumps(sorted(FILES))
    manifest.check(folder)


@pytest.mark.parametrize("place", [".lock", "metrics.jsonl", "checkpoints", "onnx/model.onnx", "checkpoints/best"])
def test_a_link_that_leads_out_is_refused(tmp_path, place):
    run, outside = tmp_path / "run", tmp_path / "thesis"
    (run / place).parent.mkdir(parents=True)
    outside.mkdir()
    (run / place).symlink_to("../" * (1 + place.count("/")) + "thesis")
    with pytest.raises(CheckpointError, match="a link that leads out of the run"):
        contained.check(run)


def test_links_inside_and_to_the_run_itself_are_fine(tmp_path):
    import os

    (tmp_path / "run/checkpoints/step-000001").mkdir(parents=True)
    (tmp_path / "run/checkpoints/best").symlink_to("step-000001")
    (tmp_path / "link").symlink_to("run")
    contained.check(tmp_path / "link")
    os.mkfifo(tmp_path / "run/run.toml")
    with pytest.raises(CheckpointError, match="neither a file nor a folder"):
        contained.check(tmp_path / "link")
