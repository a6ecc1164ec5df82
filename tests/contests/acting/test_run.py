"""Whole runs: reproducible, resumed to the bit, learning what can be learnt, and said on the command line."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.contests.acting import as_policy, open_world, resume, train
from kinfolk.contests.acting.environment import _described
from kinfolk.contests.acting.run import open_actor
from kinfolk.core.errors import SpecError, TrainingError
from kinfolk.layers.embeddings.features import Features
from kinfolk.train.loop import Session
from kinfolk.train.metrics import read
from tests.contests.acting.toy import QUIET, toy
from tests.train.toy import same_run

needs_gymnasium = pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="needs kinfolk[rl]")
CARTPOLE = pytest.param("CartPole-v1", marks=needs_gymnasium)


class CutError(Exception):
    """Stands for whatever may end a process between two steps."""


@pytest.mark.parametrize(
    ("name", "env", "step"),
    [
        ("gtrxl", "cue-recall:corridor=5", 5),
        ("lstm", "cue-recall:corridor=5", 6),
        ("gpt2", "cue-recall:corridor=5", 7),
        pytest.param("lstm", "CartPole-v1", 5, marks=needs_gymnasium),
    ],
)
def test_a_run_that_was_cut_goes_on_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, env: str, step: int
) -> None:
    """Between two updates on one rollout as well as between two rollouts (every third step)."""
    recipe, world = toy(name, env)
    train(recipe, world, tmp_path / "whole", seed=3, options=QUIET)
    update = Session.update

    def dying(self: Session, stop: Any) -> Any:
        if self.counters.step >= step:
            raise CutError
        return update(self, stop)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "update", dying)
        with pytest.raises(CutError):
            train(recipe, world, tmp_path / "cut", seed=3, options=QUIET)
    assert resume(tmp_path / "cut", options=QUIET).status == "finished"
    assert same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_seed_is_a_run_and_another_is_another(tmp_path: Path) -> None:
    recipe, world = toy()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(recipe, world, tmp_path / name, seed=seed, options=QUIET)
    assert same_run(tmp_path / "a", tmp_path / "b")
    assert not same_run(tmp_path / "a", tmp_path / "c")
    with pytest.raises(TrainingError, match="this run exists and is finished"):
        train(recipe, world, tmp_path / "a", seed=1, options=QUIET)


def test_the_folder_tells_what_happened(tmp_path: Path) -> None:
    recipe, world = toy()
    result = train(recipe, world, tmp_path / "run", options=QUIET)
    # eight steps of three to a rollout are three rollouts of 5 rows and 6 steps
    assert result.tokens == 3 * 30
    rows = list(read(tmp_path / "run/metrics.jsonl"))
    judged = [row for row in rows if "valid" in row]
    assert [row["step"] for row in judged] == [3, 6, 8]
    assert judged[-1]["tokens"] == 90
    assert set(judged[-1]["valid"]) == {"cost", "return", "length"}
    assert judged[-1]["valid"]["length"] == 4.0
    assert judged[-1]["valid"]["cost"] == -judged[-1]["valid"]["return"]
    _, learner, again = open_actor(tmp_path / "run")
    assert again.name == world.name
    want = kf.load(tmp_path / "run").state_dict()
    assert all(torch.equal(x, want[name]) for name, x in learner.model.state_dict().items())


@pytest.mark.parametrize("name", ["gtrxl", "lstm"])
def test_a_cue_is_recalled(tmp_path: Path, name: str) -> None:
    """Cue, one distractor, junction. Chance is one half; without a memory nothing better can be learnt."""
    changes = {
        "training.steps": 100,
        "training.batch_size": 32,
        "training.eval_every": 0,
        "training.eval_batches": 2,
        "training.save_every": 0,
        "training.optimiser.lr": 5e-3,
        "objective.epochs": 4,
    }
    recipe, world = toy(name, "cue-recall:corridor=1", **changes)
    before = toy(name, "cue-recall:corridor=1", **changes | {"training.steps": 1, "training.optimiser.lr": 1e-9})
    begun = train(*before, tmp_path / "begun", options=QUIET)
    assert 0.3 < begun.valid["return"] < 0.7
    assert train(recipe, world, tmp_path / "run", options=QUIET).valid["return"] > 0.95


class Box:
    """A space of vectors, as Gymnasium names it."""

    def __init__(self, bound: float) -> None:
        self.shape, self.dtype = (1,), np.dtype(np.float32)
        self.low, self.high = np.float32([-bound]), np.float32([bound])


class Aim:
    """Say the number that is seen; the error, squared, is what it costs."""

    observation_space, action_space = Box(1.0), Box(1.0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.random, self.left = np.random.default_rng(seed), 3
        self.goal = self.random.uniform(-1, 1, 1)
        return self.goal, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self.left = -float((action[0] - self.goal[0]) ** 2), self.left - 1
        self.goal = self.random.uniform(-1, 1, 1)
        return self.goal, reward, self.left == 0, False, {}


def test_a_number_is_aimed_at(tmp_path: Path) -> None:
    """Always saying 0 costs 1 in three steps."""
    changes = {
        "training.steps": 120,
        "training.batch_size": 32,
        "training.eval_every": 0,
        "training.eval_batches": 2,
        "training.save_every": 0,
        "training.optimiser.lr": 1e-2,
        "objective.epochs": 4,
    }
    recipe, world = toy("lstm", _described("aim", Aim), **changes)
    assert train(recipe, world, tmp_path / "run", options=QUIET).valid["cost"] < 0.3


def test_what_comes_in_decides_the_embedding() -> None:
    recipe, world = toy()
    assert recipe.model.vocab_size == world.n_tokens
    assert recipe.model.head.n_actions == 3
    assert recipe.model.dropout == 0.0
    if importlib.util.find_spec("gymnasium") is not None:
        recipe, _ = toy("gpt2", "CartPole-v1")
        assert isinstance(recipe.model.embedding, Features)
        assert recipe.model.embedding.n_features == 4
        assert recipe.model.embedding.position.kind == "learned"


def test_who_sees_the_future_does_not_act() -> None:
    world = open_world("cue-recall")
    with pytest.raises(SpecError, match="bert: encoders do not act"):
        as_policy(kf.relative("bert", size="tiny"), world)
    with pytest.raises(SpecError, match="vanilla: encoder-decoders do not act"):
        as_policy(kf.relative("vanilla", size="tiny"), world)


def command(*words: str) -> int:
    return main([str(word) for word in words])


SETS = [
    f"--set={text}"
    for text in (
        "d_model=16",
        "n_layers=1",
        "training.batch_size=4",
        "training.eval_batches=1",
        "training.eval_every=0",
        "training.save_every=2",
    )
]


@pytest.mark.parametrize("env", ["cue-recall:corridor=1", CARTPOLE])
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], env: str) -> None:
    out = str(tmp_path / "run")
    words = ["train", "lstm", "--env", env, "--steps", "4", "--out", out, "--quiet", "--threads", "1"]
    assert command(*words, *SETS, "--no-tensorboard") == 0
    assert "4 steps, 128 steps in the environment" in capsys.readouterr().out
    assert command("resume", out) == 0
    assert "return" in capsys.readouterr().out
    assert command("eval", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["env"] == env
    assert found["measures"]["return"]["count"] == 4


def test_the_command_line_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "run")
    assert command("train", "bert", "--env", "cue-recall", "--out", out) != 0
    assert "encoders do not act" in capsys.readouterr().err
    assert command("train", "lstm", "--env", "cue-recall", "--out", out, "--processes", "2") != 0
    assert "one process" in capsys.readouterr().err
    assert not Path(out).exists()
