"""A run that was damaged or edited is refused or repaired, NaN is an error, and names and links stay inside."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core import manifest
from kinfolk.core.errors import CheckpointError, SpecError
from kinfolk.runs import folder

OPTIONS = ["--steps", "6", "--quiet", "--no-tensorboard", "--set", "training.batch_size=2"]
OPTIONS += ["--set", "training.save_every=3", "--set", "training.keep_last=5", "--set", "training.eval_batches=1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was trained on a file by its relative name."""
    place = tmp_path_factory.mktemp("place")
    (place / "words.txt").write_text("to be or not to be that is the question\n" * 200)
    old = Path.cwd()
    os.chdir(place)
    try:
        words = ["train", "gpt", "--data", "words.txt", "--size", "tiny", "--set", "n_layers=1", "--out", "run"]
        assert main([*words, *OPTIONS]) == 0
    finally:
        os.chdir(old)
    return place / "run"


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x40
    file.write_bytes(content)


def unfinished(run: Path) -> None:
    for name in ("result.json", "model.safetensors"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints" / "step-000006")
    (run / "checkpoints" / "best").unlink()
    manifest.create(run)


def test_flipped_bits_of_finished_weights_are_refused(run, capsys):
    flip(run / "model.safetensors", -9)
    for words in (["eval", str(run)], ["generate", str(run), "--prompt", "a"]):
        assert main(words) == 2
        assert "model.safetensors: is not what the run was written with" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        kf.load(run)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("spec.toml", "\nlr = ", "\nlr = 1"), ("run.toml", "seed = 0", "seed = 1"), ("spec.toml", "d_ff", "d_ff ")],
)
def test_an_edited_unfinished_run_goes_on_only_when_that_is_meant(run, capsys, name, old, new):
    unfinished(run)
    text = (run / name).read_text()
    assert old in text
    (run / name).write_text(text.replace(old, new, 1))
    assert main(["resume", str(run), "--quiet"]) == 2
    assert f"{name}: is not what the run was written with" in capsys.readouterr().err
    assert main(["resume", str(run), "--quiet", "--accept-changes"]) == 0
    (change,) = manifest.read(run).changes
    assert list(change["files"]) == [name]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"status": "finished"}', "\x00\xff", '"a"'])
def test_a_damaged_result_or_metrics_does_not_block_resuming(run, finished, capsys, content):
    (run / "result.json").write_text(content)
    (run / "metrics.jsonl").write_text(content + "\n" + (run / "metrics.jsonl").read_text())
    assert main(["resume", str(run), "--quiet", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "result.json: damaged" in err
    assert json.loads(out)["step"] == 6
    again, first = (load_file(path / "model.safetensors") for path in (run, finished))
    assert all(torch.equal(again[name], x) for name, x in first.items())


@pytest.mark.filterwarnings("default")
def test_a_damaged_result_without_checkpoints_is_said(run, capsys):
    shutil.rmtree(run / "checkpoints")
    (run / "result.json").write_text("{")
    assert main(["resume", str(run)]) == 2
    assert "no checkpoint is left" in capsys.readouterr().err


def test_weights_and_results_that_are_not_numbers_are_errors(run, capsys, monkeypatch):
    weights = load_file(run / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, name: torch.full_like(weights[name], math.nan)}, run / "model.safetensors")
    manifest.create(run)
    assert main(["eval", str(run)]) == 2
    assert f"{name} holds values that are not numbers" in capsys.readouterr().err
    # finite weights may still lead to infinities
    save_file({**weights, name: torch.full_like(weights[name], 1e38)}, run / "model.safetensors")
    manifest.create(run)
    assert main(["eval", str(run)]) == 1
    assert "so the model or the data cannot be used" in capsys.readouterr().err


def test_a_run_begun_with_a_relative_path_is_resumed_from_elsewhere(run, finished, tmp_path, monkeypatch):
    unfinished(run)
    recorded = tomllib.loads((run / "run.toml").read_text())["data"]["name"]
    assert recorded == str(finished.parent / "words.txt")
    monkeypatch.chdir(tmp_path)
    assert main(["resume", "run", "--quiet"]) == 0


@pytest.mark.parametrize("name", ["", "a\x1bb", "x" * 101])
def test_a_name_that_cannot_be_shown_is_refused(name):
    with pytest.raises(SpecError, match=r"name: .* is not allowed"):
        kf.relative("gpt2", size="tiny").replace(name=name)


@pytest.mark.parametrize("name", ["../../../escaped", "/etc/x", "a/b", "..", ".hidden", "a\\b", "</i>", "mine (d=3)"])
def test_no_name_leads_elsewhere(name):
    folder = kf.relative("gpt2", size="tiny").replace(name=name).folder
    assert Path(folder).name == folder
    assert not folder.startswith(".")


def test_links_out_of_a_run_are_never_followed(run, tmp_path, capsys):
    unfinished(run)
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    for name in (".lock", "metrics.jsonl"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(thesis)
        for words in (["resume", str(run)], ["eval", str(run)]):
            assert main(words) == 2
            assert "a link that leads out of the run" in capsys.readouterr().err
        (run / name).unlink()
    with pytest.raises(CheckpointError), folder.locked(linked(run, thesis)):
        pass
    assert thesis.read_text() == "years of work"


def linked(run: Path, target: Path) -> Path:
    (run / ".lock").unlink(missing_ok=True)
    (run / ".lock").symlink_to(target)
    return run


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
def test_workers_end_when_their_launcher_is_killed(tmp_path):
    command = [sys.executable, "-m", "kinfolk.cli.main", "train", "gpt", "--data", "copy", "--size", "tiny"]
    command += ["--steps", "100000", "--processes", "2", "--out", str(tmp_path / "run"), "--quiet", "--no-tensorboard"]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    mark = str(tmp_path / "run").encode()

    def workers() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in (launcher.pid, os.getpid()):
                try:
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                found += [int(entry.name)] if mark in words and b"train" in words else []
        return found

    try:
        wait_until(lambda: (tmp_path / "run" / "metrics.jsonl").exists() and len(workers()) == 2)
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        wait_until(lambda: not workers())
    finally:
        launcher.kill()
        launcher.wait()
        for pid in workers():
            os.kill(pid, signal.SIGKILL)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*")), "a worker that ends with its launcher saves first"


def wait_until(true, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)
