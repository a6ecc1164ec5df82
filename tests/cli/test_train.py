"""`kin train`, `kin resume` and `kin eval`, as a user types them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kinfolk.cli.main import main
from kinfolk.core.plain import dumps
from kinfolk.runs import folder
from kinfolk.train.loop import Session
from tests.train.toy import rows, same_run

ROOT = Path(__file__).parents[2]
TINY = ["d_model=16", "n_layers=1", "n_heads=2", "d_ff=32", "max_len=64"]
SHORT = [
    "batch_size=4",
    "length=16",
    "eval_every=40",
    "eval_batches=2",
    "save_every=25",
    "precision=fp32",
    "compile=off",
]
LONG = 120


def options(out: Path, steps: int = 8) -> list[str]:
    """Return a command line for a run of a second."""
    sets = [*TINY, *(f"training.{text}" for text in SHORT)]
    words = ["--data", "copy:length=6", "--steps", str(steps), "--out", str(out), "--threads", "1", "--quiet"]
    return [*words, "--no-tensorboard", *(word for text in sets for word in ("--set", text))]


def kin(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "kinfolk.cli.main", *map(str, words)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["train", "gpt2", *options(out, LONG)]) == 0
    return out


def test_from_training_to_a_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", "gpt2", *options(out), "--seed", "5"]) == 0
    shown = capsys.readouterr().out
    assert "gpt2: 8 steps" in shown
    assert "valid: target-token" in shown
    names = {path.name for path in out.iterdir()}
    files = {"spec.toml", "run.toml", "metrics.jsonl", "checkpoints", "tokenizer.json", "model.safetensors"}
    assert names >= files | {"result.json"}
    assert main(["eval", str(out), "--batches", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    result = json.loads((out / "result.json").read_text())
    assert found["measures"]["target-token"]["mean"] == result["best"]
    assert main(["eval", str(out), "--batches", "1", "--split", "all"]) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main(["resume", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result


def test_text_has_bits_per_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "my.txt"
    text.write_text("\n\n".join(f"{i} bottles of beer on the wall, {i} bottles of beer." for i in range(400)))
    words = [*options(tmp_path / "run"), "--data", str(text), "--cache", str(tmp_path / "cache"), "--json"]
    assert main(["train", "gpt2", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 < result["bits_per_byte"] < 12
    assert list(result["valid"]) == ["next-token", "continuation"]
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(f"{i} sheep in the field" for i in range(400)))
    assert main(["eval", str(tmp_path / "run"), "--data", str(other), "--cache", str(tmp_path / "cache")]) == 0
    assert "bits per byte" in capsys.readouterr().out
    assert main(["eval", str(tmp_path / "run"), "--data", "copy"]) == 2
    assert "prepared with another tokenizer" in capsys.readouterr().err


def test_a_spec_file_is_trained_as_written(whole: Path, tmp_path: Path) -> None:
    import kinfolk as kf

    file = tmp_path / "mine.toml"
    file.write_text(dumps(kf.relative("gpt2", size="tiny", d_model=16, n_layers=1, n_heads=2, d_ff=32)))
    words = ["--data", "copy:length=6", "--steps", "2", "--out", str(tmp_path / "run"), "--quiet", "--no-tensorboard"]
    assert main(["train", str(file), *words, "--set", "training.precision=fp32", "--set", "training.batch_size=4"]) == 0
    assert len([row for row in rows(tmp_path / "run") if "loss" in row]) == 2
    # a run's own spec is a spec file too
    words = [*words[:4], "--out", str(tmp_path / "again"), *words[6:], "--threads", "1"]
    assert main(["train", str(whole / "spec.toml"), *words]) == 0
    assert rows(tmp_path / "again")[0]["loss"] == rows(whole)[0]["loss"]


def test_the_same_folder_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", "gpt2", *options(out, 2)]) == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*"))
    for words in (options(out, 2), [*options(out, 2), "--processes", "2"]):
        assert main(["train", "gpt2", *words]) == 1
        assert f"this run exists and is finished; `kin resume {out}` goes on with it" in capsys.readouterr().err
    assert main(["train", "gpt2", *options(out, 3)]) == 1
    assert "holds another run" in capsys.readouterr().err
    assert sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "gpt3"], "unknown relative 'gpt3'; did you mean 'gpt"),
        (["train", "gpt2", "--data", "cpoy"], "did you mean 'copy'"),
        (["train", "absent.toml", "--data", "copy"], "absent.toml"),
        (["train", "gpt2", "--data", "copy", "--set", "training.stepz=3"], "did you mean 'steps'"),
        (
            ["train", "gpt2", "--data", "copy", "--set", "training.precision=fp23"],
            "unknown 'fp23'; did you mean 'fp32'",
        ),
        (["train", "gpt2", "--data", "copy", "--strategy", "dpp"], "did you mean 'ddp'"),
        (["train", "gpt2", "--data", "copy", "--device", "abacus"], "device"),
        (["train", "gpt2", "--stpes", "3"], "did you mean '--steps'"),
        (["resume", "nowhere"], "nowhere: not a run folder"),
        (["eval", "nowhere"], "nowhere: no such folder; expected a run"),
        (["eval", "nowhere", "--split", "vaild"], "did you mean 'valid'"),
    ],
)
def test_a_wrong_word_is_one_clear_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert message in shown
    # behind what was asked for, if it came to that
    assert [line.startswith("kin ") for line in shown.splitlines()][-2:] in ([True], [False, True])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["train", "resume", "eval"])
def test_help_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    assert f"examples:\n  kin {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["train", "finetune", "compare"])
def test_the_first_line_comes_before_anything_large_is_imported(verb: str, tmp_path: Path) -> None:
    """A tensor library takes seconds to import, on a busy machine many: what runs is said before."""
    words = {
        "train": ["train", "gpt2", "--data", "copy", "--out", "there"],
        "finetune": ["finetune", "source", "--train", "a.csv", "--out", "there"],
        "compare": ["compare", "gpt2", "bert", "--data", "copy", "--out", "there"],
    }
    # a module that is None in this table cannot be imported
    code = "import sys; sys.modules['torch'] = None; from kinfolk.cli.main import main; main(sys.argv[1:])"
    told = subprocess.run([sys.executable, "-c", code, *words[verb]], cwd=tmp_path, capture_output=True, text=True)
    first = told.stderr.splitlines()[0]
    assert all(word in first for word in (*words[verb][1:2], "there"))
    assert "torch" in told.stderr.splitlines()[1]


def test_the_first_lines_say_what_is_computed_with_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = [word for word in options(out, 2) if word != "--quiet"]
    assert main(["train", "gpt2", *words, "--precision", "bf16", "--threads", "1"]) == 0
    said = capsys.readouterr().err.splitlines()[1]
    run = folder.read(out)
    assert (run.choice.precision, run.options.threads) == ("bf16", 1)
    for word in (" parameters", "2 steps", "bf16", "1 thread", "cpu", "tokens to learn from", str(out)):
        assert word in said


def wait_for_steps(out: Path, count: int) -> None:
    """Wait until a run has made so many steps."""
    metrics, deadline = out / "metrics.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") > count:
            return
        time.sleep(0.005)
    pytest.fail("the run did not begin")


@pytest.mark.slow
def test_killed_and_resumed_is_as_if_nothing_happened(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "cut"
    with subprocess.Popen(kin("train", "gpt2", *options(out, LONG)), cwd=ROOT) as process:
        wait_for_steps(out, 30)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (out / "result.json").exists()
    assert main(["resume", str(out), "--quiet"]) == 0
    assert same_run(whole, out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_saves_and_leaves_with_130(
    whole: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, update = tmp_path / "cut", Session.update

    def signalled(self: Session, stop: Any) -> Any:
        if self.counters.step == 17:
            os.kill(os.getpid(), number)
        return update(self, stop)

    monkeypatch.setattr(Session, "update", signalled)
    assert main(["train", "gpt2", *options(out, LONG)]) == 130
    assert f"interrupted at step 18 of {LONG}; go on with: kin resume {out}" in capsys.readouterr().out
    assert (out / "checkpoints/step-000018").exists()
    assert not (out / "result.json").exists()
    assert main(["resume", str(out), "--quiet"]) == 0
    assert same_run(whole, out)


@pytest.mark.slow
def test_two_processes_are_interrupted_and_one_goes_on(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "cut"
    command = kin("train", "gpt2", *options(out, LONG), "--processes", "2")
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE) as process:
        wait_for_steps(out, 12)
        os.kill(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=200)[1].decode()
        assert process.returncode == 130, errors
    assert "Traceback" not in errors
    step = rows(out)[-1]["step"]
    assert 10 < step < LONG
    assert max((out / "checkpoints").glob("step-0*")).name == f"step-{step:06d}"
    assert main(["resume", str(out), "--quiet"]) == 0
    losses = [[row["loss"] for row in rows(run) if "loss" in row] for run in (out, whole)]
    assert len(losses[0]) == LONG
    # rounding differs between one process and two, and grows with the steps
    assert losses[0][:30] == pytest.approx(losses[1][:30], rel=1e-3)


@pytest.mark.slow
def test_torchrun_starts_a_sharded_run(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command = [*torchrun, "--rdzv-endpoint", "localhost:0", "-m", "kinfolk.cli.main", "train", "vanilla"]
    words = [*options(tmp_path / "run"), "--strategy", "fsdp", "--json"]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["status"], result["step"]) == ("finished", 8)
    assert main(["train", "vanilla", *options(tmp_path / "alone")]) == 0
    losses = [[row["loss"] for row in rows(tmp_path / run) if "loss" in row] for run in ("run", "alone")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.long
def test_a_failed_process_is_started_again(tmp_path: Path) -> None:
    """A plugin that dies once, in the middle: torch elastic starts both processes again, and they go on."""
    out, plugin = tmp_path / "run", tmp_path / "dying.py"
    plugin.write_text(f"""
import os
from pathlib import Path
from kinfolk.train.loop import Session
update = Session.update
def dying(self, stop):
    if self.counters.step == 5 and self.team.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), 9)
    return update(self, stop)
Session.update = dying
Path({str(tmp_path / "loaded")!r}).touch()
""")
    words = [
        *options(out),
        "--processes",
        "2",
        "--set",
        "training.save_every=3",
        "--restarts",
        "1",
        "--plugin",
        str(plugin),
    ]
    done = subprocess.run(
        kin("train", "gpt2", *words), cwd=ROOT, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "loaded").exists()
    assert [row["step"] for row in rows(out) if "loss" in row] == list(range(1, 9))


def test_a_prompt_that_is_too_long_is_refused_before_it_is_echoed(tmp_path, capsys):
    changes = [word for size in TINY for word in ("--set", size)]
    text = tmp_path / "my.txt"
    text.write_text("words and more words. " * 300)
    where = ["--data", str(text), "--out", str(tmp_path / "run"), "--cache", str(tmp_path / "cache")]
    changes += ["--set", "training.length=32"]
    assert main(["train", "gpt2", *where, *changes, "--steps", "1", "--quiet", "--no-tensorboard"]) == 0
    capsys.readouterr()
    for more in (["--prompt", "x" * 60, "--max-new", "20"], ["--prompt", "x" * 100, "--max-new", "1"]):
        assert main(["generate", str(tmp_path / "run"), *more]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "more than the 64 positions of the model" in said.err
    assert main(["generate", str(tmp_path / "run"), "--prompt", "x" * 40, "--max-new", "20"]) == 0
