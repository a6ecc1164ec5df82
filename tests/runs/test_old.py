"""Runs, saved models, prepared data and comparisons of an earlier version open, resume and give equal results."""

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.contests import trials
from kinfolk.contests.job import Job
from kinfolk.contests.layout import Layout
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import Trial
from kinfolk.core.console import Console
from kinfolk.core.manifest import NoManifest
from kinfolk.data import open_data
from kinfolk.runs.run import Run
from kinfolk.train import RunOptions, resume

OLD = Path(__file__).parents[1] / "old"
CAPABILITY, MAKER = "AVX512", "AuthenticAMD"
"""Of processors that sum as the one that wrote them: MKL has other kernels for other makers, equal up to rounding."""

pytestmark = pytest.mark.filterwarnings("ignore::kinfolk.core.manifest.NoManifest", "ignore:.*begun with torch")


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD, tmp_path / "old", symlinks=True)
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.setenv("KINFOLK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "old"


def assert_same_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    processor = Path("/proc/cpuinfo")
    made_by = processor.read_text(encoding="utf-8", errors="replace") if processor.is_file() else ""
    exact = torch.backends.cpu.get_cpu_capability() == CAPABILITY and MAKER in made_by
    near = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
    assert one.keys() == other.keys()
    for name, x in one.items():
        torch.testing.assert_close(x, other[name], **near)


def test_an_interrupted_run_resumes_to_the_weights_of_the_uninterrupted_one(old: Path) -> None:
    assert not (old / "unfinished/model.safetensors").exists()
    result = resume(old / "unfinished", options=RunOptions(threads=1, quiet=True, tensorboard=False))
    assert (result.status, result.step) == ("finished", 60)
    assert_same_tensors(load_file(old / "unfinished/model.safetensors"), load_file(OLD / "finished/model.safetensors"))
    before = json.loads((OLD / "finished/result.json").read_text())
    assert result.valid == pytest.approx(before["valid"], rel=1e-5)


def test_a_run_without_a_manifest_says_so(old: Path) -> None:
    with pytest.warns(NoManifest, match=r"finished: has no manifest\.json"):
        run = Run.open(old / "finished")
    assert run.recipe.name == "gpt2"


@pytest.mark.parametrize("name", ["finished", "classifier"])
def test_evaluation_is_the_same(name: str, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", name, "--json"]) == 0
    found, before = json.loads(capsys.readouterr().out), json.loads((OLD / f"{name}-eval.json").read_text())
    assert found["measures"].keys() == before["measures"].keys()
    for measure, scores in before["measures"].items():
        assert found["measures"][measure]["mean"] == pytest.approx(scores["mean"], rel=1e-5)
        assert found["measures"][measure]["count"] == scores["count"]


def test_predictions_and_texts_are_the_same(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "classifier", "--input", "reviews.csv", "--out", "said.jsonl"]) == 0
    said, before = (
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in (old / "said.jsonl", OLD / "classifier-predictions.jsonl")
    )
    assert [row["label"] for row in said] == [row["label"] for row in before]
    for row, other in zip(said, before, strict=True):
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    capsys.readouterr()
    for run in ("finished", "saved"):
        assert main(["generate", run, "--prompt", "the miller", "--greedy", "--max-new", "20", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads((OLD / "finished-text.json").read_text())


def test_a_saved_model_and_prepared_data_open(old: Path) -> None:
    assert_same_tensors(dict(kf.load(old / "saved").state_dict()), load_file(OLD / "finished/model.safetensors"))
    prepared = open_data("prepared")
    assert prepared.fingerprint == Run.open(old / "finished").metadata.fingerprint
    assert Run.open(old / "finished").data().split("valid").n_tokens == prepared.split("valid").n_tokens


def test_trials_of_a_comparison_open(old: Path) -> None:
    results = json.loads((old / "comparison/results.json").read_text())
    assert {row["name"] for row in results["rows"]} == {"gpt", "gpt2"}
    folders = sorted((old / "comparison/trials").iterdir())
    assert len(folders) == 4
    for trial in folders:
        run, before = Run.open(trial / "run"), json.loads((trial / "run/result.json").read_text())
        assert run.metadata.data.name == "prepared"
        assert sum(p.numel() for p in run.model().parameters()) == before["parameters"]


def test_a_comparison_goes_on_with_the_trials_that_it_has(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of then, with what is the default now switched off: no trial runs, and the losses are the same."""
    before = json.loads((OLD / "comparison/results.json").read_text())

    def no_trial(jobs: Sequence[Job], *_: object) -> None:
        raise AssertionError(f"{len(jobs)} trials were run again")

    monkeypatch.setattr(trials, "run_all", no_trial)
    command = before["facts"]["command"].split()[1:]
    assert main([*command, "--tune", "off", "--match", "none"]) == 0
    after = json.loads((old / "comparison/results.json").read_text())
    assert len(after["rows"]) == 2
    for row, was in zip(after["rows"], before["rows"], strict=True):
        same = ("name", "measure", "early", "final", "rank", "seeds", "failed", "steps", "tokens")
        assert {name: row[name] for name in same} == {name: was[name] for name in same}
        # added up in another order since
        assert row["spread"] == pytest.approx(was["spread"], rel=1e-12)
    # a third seed is all that is missing of three
    missing: list[Job] = []
    monkeypatch.setattr(trials, "run_all", lambda jobs, *_: missing.extend(jobs))
    main([*command, "--tune", "off", "--match", "none", "--seeds", "3"])
    assert [(job.name, job.seed) for job in missing] == [("gpt2", 2), ("gpt", 2)]


def test_trials_of_grouped_batches_are_not_taken_for_those_of_now(old: Path) -> None:
    """The order of grouped batches changed since, which the recipe of then does not say."""
    order = Trial.read(next((old / "comparison/trials").iterdir())).completed()
    settings = Settings(contestants=("gpt",), out=old / "comparison")
    now, layout = Console(file=io.StringIO()), Layout(jobs=1, threads=1)
    assert trials.Trials(settings, layout, now, (), ungrouped=True).known(order) is not None
    assert trials.Trials(settings, layout, now, (), ungrouped=False).known(order) is None
