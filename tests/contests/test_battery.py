"""What a trained contestant can do besides its loss, on real runs of a few steps."""

from pathlib import Path

import pytest

from kinfolk.bench.decoding import n_bytes
from kinfolk.contests import battery
from kinfolk.data import Batches, open_data
from kinfolk.runs.fit import fit
from kinfolk.runs.run import Run
from kinfolk.train import RunOptions, train
from kinfolk.train.evaluate import evaluate
from kinfolk.train.run import reading_of

DATA = "stdlib:megabytes=1"
NUMBERS = ("n_layers=1", "d_model=32", "n_heads=2", "d_ff=64")
TRAINING = ("training.steps=3", "training.batch_size=4", "training.length=32", "training.eval_batches=2")


def trained(name: str, folder: Path, data: str = DATA) -> Path:
    recipe = fit(name, open_data(data), assignments=(*NUMBERS, *TRAINING))
    train(recipe, open_data(data), folder, options=RunOptions(quiet=True, tensorboard=False, report=False))
    return folder


@pytest.fixture(scope="module")
def alibi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained("alibi", tmp_path_factory.mktemp("alibi") / "run")


def test_losses_are_those_of_an_evaluation(alibi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(battery.POSITIONS, "quick", (64,))
    found = battery.measure(alibi, open_data(DATA), "quick", tmp_path)
    run = Run.open(alibi)
    batches = Batches(split=open_data(DATA).split("valid"), shuffle=False, **reading_of(run.recipe.training))
    wanted = evaluate(run.learner(), batches, battery.BATCHES)["next-token"].mean
    assert found.longer["1x"] == pytest.approx(wanted, rel=1e-6)
    assert set(found.longer) == {"1x", "2x", "4x"}
    parts = found.by_position
    assert list(parts) == ["8", "16", "32"]
    assert (8 * parts["8"] + 8 * parts["16"] + 16 * parts["32"]) / 32 == pytest.approx(wanted, rel=1e-6)
    assert found.problems == {}
    assert found.latency is not None
    again = battery.measure(alibi, open_data(DATA), "quick", tmp_path)
    assert (again.by_position, again.longer) == (found.by_position, found.longer)


def test_the_state_of_a_cache_grows_with_the_position(alibi: Path) -> None:
    sizes = [battery._decoding(Run.open(alibi), at)["state_bytes"] for at in (64, 128)]
    # keys and values of 32 channels in float32, a layer; 64 more positions
    assert sizes[1] - sizes[0] == 64 * 2 * 32 * 4
    assert n_bytes is battery.n_bytes


def test_what_cannot_be_asked_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(battery.POSITIONS, "quick", (1024,))
    found = battery.measure(trained("gpt2", tmp_path / "gpt2"), open_data(DATA), "quick", tmp_path)
    assert "positions" in found.problems["decoding at 1,024"]
    assert found.decoding == {}
    found = battery.measure(trained("bert", tmp_path / "bert"), open_data(DATA), "quick", tmp_path)
    assert found.by_position == found.longer == found.decoding == {}
    assert found.latency is None
    assert len(found.problems) == 6


@pytest.mark.slow
def test_tasks_are_learnt_and_go_on_where_they_stopped(
    alibi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(battery, "STEPS", 4)
    monkeypatch.setattr(battery, "BATCHES", 1)
    run = Run.open(alibi)
    for name, task in battery.TASKS.items():
        first = battery._task(run, task, tmp_path / name, 0)
        assert 0.0 <= first["right"] <= 1.0
        assert battery._task(run, task, tmp_path / name, 0) == first
