"""`kin compare` as a user runs it: with a contestant that crashes, one that diverges, and Ctrl-C in the middle."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.contests import schedule, trial
from kinfolk.contests.outcome import CRASHED, DIVERGED, DONE, Outcome
from kinfolk.contests.trial import Trial

PLUGIN = """
from kinfolk.core.cost import Cost
from kinfolk.family.gpt import gpt2
from kinfolk.family.registry import relative
from kinfolk.layers.part import FeedForward, PartModule

class Fragile(FeedForward, kind="fragile"):
    def build(self, dims):
        return Broken()

    def cost(self, dims, shape):
        return Cost()

class Broken(PartModule):
    def forward(self, x_BLD, ctx, state):
        raise RuntimeError("it fell off the table")

@relative("fragile", parent="gpt2", year=2024, paper="none", topology="decoder", causal=True, changes="it breaks")
def fragile(**numbers):
    recipe = gpt2(**numbers)
    stack = recipe.model.decoder
    blocks = tuple(b.replace(parts=(b.parts[0], Fragile())) for b in stack.blocks)
    return recipe.replace(name="fragile", model=recipe.model.replace(decoder=stack.replace(blocks=blocks)))
"""
NUMBERS = "size = 'tiny'\nd_model = 16\nn_layers = 1\nn_heads = 2\nd_ff = 32\n"
SOUND = f"[contestants.little]\nrelative = 'gpt2'\n{NUMBERS}[contestants.pair]\nrelative = 'vanilla'\n{NUMBERS}"
WILD = f"[contestants.wild]\nrelative = 'gpt2'\n{NUMBERS}'training.optimiser.lr' = 1e30\n'training.clip' = 0.0\n"
FRAGILE = f"[contestants.'<i>fragile</i>']\nrelative = 'fragile'\n{NUMBERS}"
BUDGET = "18k-tokens"
"""Sixty steps: enough to be stopped in the middle of them."""
ASKED = [
    "--tune",
    "off",
    "--match",
    "none",
    "--data",
    "copy",
    "--budget",
    BUDGET,
    "--seeds",
    "2",
    "--jobs",
    "2",
    "--threads",
    "1",
    "--nice",
    "0",
]


def kin(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kinfolk", "compare", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    (folder / "plugin.py").write_text(PLUGIN)
    (folder / "all.toml").write_text(SOUND + WILD + FRAGILE)
    (folder / "sound.toml").write_text(SOUND)
    return folder


@pytest.fixture(scope="module")
def stopped(place: Path) -> str:
    """A comparison that Ctrl-C stopped in the middle of its first trials; what it said."""
    process = kin(*words_of(place))
    trials = place / "out" / "trials"
    wait_for(lambda: any(steps_of(run) > 10 for run in trials.glob("*/run")), process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    return errors


@pytest.fixture(scope="module")
def middle(stopped: str, place: Path) -> list[Path]:
    """The runs that were in the middle then: they have saved and have no result."""
    runs = [run for run in (place / "out" / "trials").glob("*/run") if not (run.parent / "result.json").exists()]
    return [run for run in runs if list(run.glob("checkpoints/step-*"))]


@pytest.fixture(scope="module")
def result(middle: list[Path], place: Path) -> dict[str, Any]:
    """The same command again, to the end."""
    assert middle
    process = kin(*words_of(place), "--json")
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    found: dict[str, Any] = json.loads(out)
    return found


def words_of(place: Path) -> list[str]:
    return [str(place / "all.toml"), *ASKED, "--plugin", str(place / "plugin.py"), "--out", str(place / "out")]


@pytest.mark.slow
def test_everybody_has_a_row_whatever_happened(result: dict[str, Any], place: Path) -> None:
    rows = {row["name"]: row for row in result["rows"]}
    assert set(rows) == {"little", "pair", "wild", "<i>fragile</i>"}
    for name in ("little", "pair"):
        row = rows[name]
        assert (row["seeds"], row["failed"], row["measure"]) == (2, 0, "target-token")
        assert row["final"] < row["early"]
        assert row["spread"] > 0
        assert row["rank"] in (1, 2)
        assert row["tokens_per_second"] > 0
        assert row["peak_bytes"] > row["growth_bytes"] > 0
        # the budget is used up, as far as pairs of unequal length allow
        assert 0.9 * 18_000 < row["tokens"] < 1.1 * 18_000
    for name in ("wild", "<i>fragile</i>"):
        assert (rows[name]["seeds"], rows[name]["failed"], rows[name]["rank"]) == (0, 2, None)
    assert "diverged" in rows["wild"]["note"]
    assert "it fell off the table" in rows["<i>fragile</i>"]["note"]
    statuses = {(trial["name"], trial["status"]) for trial in result["trials"]}
    assert statuses == {("little", DONE), ("pair", DONE), ("wild", DIVERGED), ("<i>fragile</i>", CRASHED)}


@pytest.mark.slow
def test_the_files_are_there(result: dict[str, Any], place: Path) -> None:
    with (place / "out" / "results.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == [row["name"] for row in result["rows"]]
    assert json.loads((place / "out" / "results.json").read_text())["rows"] == result["rows"]
    assert result["answer"]["name"] in {row["name"] for row in result["rows"]}
    page = (Path(__file__).parents[2] / "AGENTS.md").read_text(encoding="utf-8")
    named = page.partition("`rows` is sorted")[2].partition("## ")[0]
    fields = set(re.findall(r"`([a-z_]+)`", named)) & set(result["rows"][0])
    # what the page for programs names is there
    assert fields >= {"name", "final", "measure", "final_low", "final_high", "mark", "params", "flags", "failed"}
    report = (place / "out" / "report.html").read_text()
    assert "&lt;i&gt;fragile&lt;/i&gt;" in report
    assert "it fell off the table" in report
    assert "kin compare" in report
    # what training left for going on is gone, what it found is not
    (run,) = (place / "out" / "trials").glob("little-seed0-*/run")
    assert (run / "model.safetensors").exists()
    assert not (run / "checkpoints").exists()


@pytest.mark.slow
def test_contestants_saw_the_same_batches(result: dict[str, Any]) -> None:
    tokens = {
        (trial["seed"], point["step"]): point["tokens"]
        for trial in result["trials"]
        for point in trial["curve"]
        if trial["name"] == "little"
    }
    others = {
        (trial["seed"], point["step"]): point["tokens"]
        for trial in result["trials"]
        for point in trial["curve"]
        if trial["name"] == "pair"
    }
    assert tokens == others
    assert len({seed for seed, _ in tokens}) == 2


@pytest.mark.slow
def test_an_interruption_keeps_what_there_is(stopped: str, middle: list[Path], place: Path) -> None:
    assert "go on with: kin compare" in stopped
    assert (place / "out" / "report.html").exists()
    assert len(middle) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["little", "pair"])
def test_stopped_and_gone_on_with_is_as_if_never_stopped(
    result: dict[str, Any], place: Path, tmp_path: Path, name: str
) -> None:
    (folder,) = (place / "out" / "trials").glob(f"{name}-seed0-*")
    never_stopped = trial.run(Trial.read(folder), tmp_path)
    assert never_stopped is not None
    found = next(t for t in result["trials"] if (t["name"], t["seed"]) == (name, 0))
    assert [(p["step"], p["tokens"], p["valid"]) for p in found["curve"]] == [
        (p.step, p.tokens, p.valid) for p in never_stopped.curve
    ]
    assert (found["steps"], found["flops"]) == (never_stopped.steps, never_stopped.flops)


def steps_of(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def wait_for(what: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_what_is_finished_is_not_run_again(
    result: dict[str, Any], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is left to run")

    monkeypatch.setattr(schedule, "Child", refuse)
    # a smaller question, with the same answers
    again = kf.compare([place / "sound.toml"], "copy", BUDGET, seeds=2, tune="off", match="none", out=place / "out")
    assert [o.status for trials in again.outcomes.values() for o in trials] == [DONE] * 4
    assert {row.name: row.final for row in again.rows} == {
        row["name"]: row["final"] for row in result["rows"] if row["final"] is not None
    }
    fewer = kf.compare([place / "sound.toml"], "copy", BUDGET, seeds=1, tune="off", match="none", out=place / "out")
    assert all(row.spread is None for row in fewer.rows)


@pytest.mark.slow
@pytest.mark.long
def test_a_budget_in_seconds_is_measured_first(place: Path) -> None:
    (place / "one.toml").write_text(SOUND.partition("[contestants.pair]")[0])
    made = kf.compare(
        [place / "one.toml"],
        "copy",
        "1s",
        seeds=1,
        tune="off",
        match="none",
        jobs=1,
        threads=1,
        nice=0,
        out=place / "timed",
    )
    (ended,) = made.outcomes["little"]
    (folder,) = (place / "timed" / "calibrations").glob("little-*")
    measured = Outcome.read(folder)
    assert measured is not None
    assert ended.planned_steps == max(1, int(measured.steps / measured.seconds * (1 + 1e-9)))
    assert 0 < ended.steps <= ended.planned_steps
    assert ended.seconds > 0
    assert "measured time per step" in made.facts["seconds"]


def test_compare_is_a_function_of_the_package() -> None:
    with pytest.raises(kf.KinfolkError, match="budget 'soon'"):
        kf.compare(["gpt2"], budget="soon")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    old = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(old)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gtp2"], "did you mean 'gpt2'"),
        (["gpt2", "--budget", "5"], "the unit is missing"),
        (["gpt2", "--match", "size"], "match: unknown choice 'size'"),
        (["gpt2", "--data", "nowhere.txt"], "nowhere.txt"),
        (["gpt2", "--data", "copy", "--set", "model.d_modl=3"], "d_modl"),
        (["gpt2", "gpt2"], "named twice"),
        (["gpt2", "--seeds", "0"], "seeds must be at least 1"),
    ],
)
def test_refusals_are_one_line(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["compare", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
    # nothing is left behind by a question that was refused
    assert not list(elsewhere.glob("runs/*/trials"))
