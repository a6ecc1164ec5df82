"""Runs of real relatives: repeatable, resumable, and refused early when they cannot work."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.core import manifest
from kinfolk.core.errors import CheckpointError, DataError, KinfolkError, SpecError
from kinfolk.data import Batches, Data, open_data
from kinfolk.models.cost import cost
from kinfolk.runs import folder
from kinfolk.runs.run import Run
from kinfolk.train import RunOptions, resume, train
from kinfolk.train.evaluate import evaluate
from kinfolk.train.loop import Session
from kinfolk.train.parallel import Team
from kinfolk.train.run import OtherVersion, make_job
from kinfolk.train.step import tokens_of
from tests.train.toy import rows, same_run, weights

QUIET = RunOptions(quiet=True, tensorboard=False, device="cpu", threads=1)
SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_len": 64, "dropout": 0.1}
SHORT = {
    "training.steps": 6,
    "training.batch_size": 4,
    "training.length": 16,
    "training.eval_every": 2,
    "training.eval_batches": 2,
    "training.save_every": 2,
    "training.precision": "fp32",
    "training.compile": "off",
}


@pytest.fixture(scope="module")
def data() -> Data:
    return open_data("copy:length=6")


def recipe(data: Data, name: str = "gpt2", **changes: Any) -> Any:
    numbers: dict[str, Any] = SMALL | SHORT | changes
    return kf.relative(name, size="tiny", vocab_size=data.tokenizer.vocab_size, **numbers)


class CutError(Exception):
    """Stands for whatever may end a process between two steps."""


def cut_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let every run die after a step."""
    update = Session.update

    def dying(self: Session, stop: Any) -> Any:
        if self.counters.step >= step:
            raise CutError
        return update(self, stop)

    monkeypatch.setattr(Session, "update", dying)


@pytest.mark.parametrize("name", ["vanilla", "vanilla-pre", "gpt", "gpt2", "bert"])
def test_every_relative_resumes_to_the_bit(
    name: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe(data, name), data, tmp_path / "whole", seed=3, options=QUIET)
    with monkeypatch.context() as patched:
        cut_after(patched, 5)
        with pytest.raises(CutError):
            train(recipe(data, name), data, tmp_path / "cut", seed=3, options=QUIET)
    assert rows(tmp_path / "cut")[-1]["step"] == 5
    result = resume(tmp_path / "cut", options=QUIET)
    assert (result.status, result.step) == ("finished", 6)
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_run_of_an_earlier_version_goes_on_with_its_own_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of version 1 were sorted by length; a run says in run.toml which order it has, and older ones nothing."""
    data = open_data("addition:digits=9,examples=400")
    assert data.split("train").lengths(np.arange(9))[0].std() > 0  # type: ignore[attr-defined]

    def begun(out: Path, order: int) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("kinfolk.train.run.ORDER", order)
            patched.setattr("kinfolk.train.run.make_job", functools.partial(make_job, order=order))
            cut_after(patched, 3)
            with pytest.raises(CutError):
                train(recipe(data), data, out, options=QUIET)
        text = (out / folder.RUN).read_text()
        (out / folder.RUN).write_text(text.replace("order = 1\n", "") if order == 1 else text)
        (out / folder.SPEC).write_text((out / folder.SPEC).read_text().replace('grouping = "auto"\n', ""))
        manifest.create(out)

    for order in (1, 2):
        begun(tmp_path / f"v{order}", order)
        read = Batches(data.split("train"), batch_size=4, length=16, grouping={1: "sorted", 2: "length"}[order])
        resume(tmp_path / f"v{order}", options=QUIET)
        counts = [row["tokens"] for row in rows(tmp_path / f"v{order}")]
        expected = np.cumsum([tokens_of(read.at(step)) for step in range(6)])
        assert counts[-1] == expected[-1]
    begun(tmp_path / "v3", 2)
    folder.update(tmp_path / "v3", order=3)
    with pytest.raises(CheckpointError, match=r"run\.toml: order: version 3 .* is unknown; this Kinfolk has 1 to 2"):
        resume(tmp_path / "v3", options=QUIET)


def test_the_seed_is_in_everything(data: Data, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        train(recipe(data), data, tmp_path / name, seed=seed, options=QUIET)
    assert rows(tmp_path / "a")[0]["loss"] != rows(tmp_path / "b")[0]["loss"]


def test_the_run_can_be_loaded_and_scored(data: Data, tmp_path: Path) -> None:
    result = train(recipe(data), data, tmp_path / "run", options=QUIET)
    model = kf.load(tmp_path / "run")
    best = weights(tmp_path / "run") if result.best_step == 6 else None
    if best is not None:
        assert all(torch.equal(x, best[f"model/{name}"]) for name, x in model.state_dict().items())
    read, learner = Run.open(tmp_path / "run").recipe, Run.open(tmp_path / "run").learner()
    assert read == recipe(data)
    batches = Batches(split=data.split("valid"), batch_size=4, length=16, shuffle=False)
    assert evaluate(learner, batches, 2)["target-token"].mean == result.best


def test_recomputing_changes_memory_only(data: Data, tmp_path: Path) -> None:
    """With dropout, so the random state must be restored for the second pass."""
    for mode in ("none", "blocks"):
        train(recipe(data, **{"training.recompute": mode}), data, tmp_path / mode, options=QUIET)
    assert same_run(tmp_path / "none", tmp_path / "blocks")


def test_a_finished_run_returns_its_result(data: Data, tmp_path: Path) -> None:
    result = train(recipe(data), data, tmp_path / "run", options=QUIET)
    assert resume(tmp_path / "run") == result


def test_work_per_token_is_that_of_the_cost_model(data: Data) -> None:
    text = dataclasses.replace(data, kind="text")
    plain = recipe(data, "vanilla")
    job = make_job(plain, text, 0)
    batch, read = job.read(1, Team())
    target, source = batch.tokens.shape[1], batch.source.shape[1]
    scored = float((batch.targets >= 0).sum()) / batch.tokens.numel()
    wanted = cost(plain.model, target, source, scored).train_flops_per_token * batch.tokens.numel() / read
    assert job.flops_per_token == pytest.approx(wanted, rel=0.25)
    assert job.flops_per_token > 0


def test_what_cannot_work_is_refused_before_anything_is_written(data: Data, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(SpecError, match=r"model\.vocab_size: 5 is less than the 27 tokens of copy"):
        train(recipe(data, **{"model.vocab_size": 5}), data, out, options=QUIET)
    with pytest.raises(KinfolkError, match="use a larger max_len"):
        train(recipe(data, max_len=4), data, out, options=QUIET)
    with pytest.raises(SpecError, match="4 rows cannot be shared by 3 processes"):
        make_job(recipe(data), data, 0, Team(world=3))
    with pytest.raises(SpecError, match="strategy: unknown 'dpp'"):
        train(recipe(data), data, out, options=QUIET.replace(strategy="dpp"))
    assert not out.exists()


def test_other_data_is_noticed(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        cut_after(patched, 3)
        with pytest.raises(CutError):
            train(recipe(data), data, tmp_path / "run", options=QUIET)
    with pytest.raises(DataError, match="is not the data"):
        resume(tmp_path / "run", data=dataclasses.replace(data, fingerprint="other"))


def test_another_version_is_said(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        cut_after(patched, 5)
        with pytest.raises(CutError):
            train(recipe(data), data, tmp_path / "run", options=QUIET)
    versions = folder.read(tmp_path / "run").versions.replace(torch="1.0")
    folder.update(tmp_path / "run", versions=versions)
    with pytest.warns(OtherVersion, match=r"begun with torch 1\.0, goes on with"):
        assert resume(tmp_path / "run", options=QUIET).status == "finished"


def test_a_run_without_weights_says_so(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_after(monkeypatch, 1)
    with pytest.raises(CutError):
        train(recipe(data), data, tmp_path / "run", options=QUIET)
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        Run.open(tmp_path / "run").learner()
    with pytest.raises(CheckpointError, match="not a run folder"):
        resume(tmp_path)
