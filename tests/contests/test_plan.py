"""What was asked becomes trials: the same batches for all, widths matched, budgets in steps, keys that tell apart."""

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.contests import plan
from kinfolk.contests.layout import Layout
from kinfolk.contests.reading import cost_of, read, window
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import Trial
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import from_plain
from kinfolk.data import Batches, open_data
from kinfolk.family.making import make
from kinfolk.family.recipe import Recipe
from kinfolk.models.cost import cost
from kinfolk.models.model import build_model
from kinfolk.train.precision import ANSWER
from kinfolk.train.step import tokens_of


def planned(folder: Path, **asked: Any) -> plan.Plan:
    known = {"data": "copy", "budget": "10k-tokens", "seeds": 2, "contestants": ("gpt2", "vanilla"), "out": folder}
    known |= {"tune": "off", "match": "none"}
    return plan.make(Settings(**(known | asked)))


@pytest.mark.parametrize(("answer", "precision"), [("slow", "fp32"), ("fast", "bf16")])
def test_everybody_gets_the_batches_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, precision: str
) -> None:
    monkeypatch.setenv(ANSWER, answer)
    table = tmp_path / "t.toml"
    table.write_text("""
        [contestants.first]
        relative = "gpt2"
        "training.batch_size" = 8
        "training.length" = 24
        "training.eval_batches" = 3
        [contestants.second]
        relative = "bert"
        "training.batch_size" = 64
        "training.length" = 99
        "training.precision" = "fp16"
        """)
    made = planned(tmp_path / "out", contestants=(str(table),))
    trainings = [entrant.recipe.training for entrant in made.entrants]
    same = {(t.batch_size, t.length, t.eval_batches, t.precision, t.compile) for t in trainings}
    assert same == {(8, 24, 3, precision, "off")}


def test_a_folder_keeps_the_precision_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another answer, of another machine or another release, must not train finished trials again."""
    keys = {}
    for answer in ("fast", "slow"):
        monkeypatch.setenv(ANSWER, answer)
        made = planned(tmp_path)
        keys[answer] = [made.trial(entrant, 0).key for entrant in made.entrants]
    assert keys["fast"] == keys["slow"]
    # unless the user asks for another
    asked = planned(tmp_path, assignments=("training.precision=fp32",))
    assert {entrant.recipe.training.precision for entrant in asked.entrants} == {"fp32"}
    with pytest.raises(SpecError, match=r"training.precision: 'fp16' is for accelerators"):
        planned(tmp_path, assignments=("training.precision=fp16",))


def test_tokens_become_steps(tmp_path: Path) -> None:
    made = planned(tmp_path)
    trial = made.trial(made.entrants[0], seed=1)
    training = from_plain(Recipe, trial.recipe).training
    assert training.steps == int(10_000 / made.reading.tokens_per_step)
    assert (trial.seed, trial.max_seconds, training.patience) == (1, 0, 0)


def test_validations_are_ten_or_as_many_as_are_cheap(tmp_path: Path) -> None:
    for tokens, expected in (("100k-tokens", 5), ("400k-tokens", 8), ("4M-tokens", 10)):
        made = planned(tmp_path, data="stdlib", budget=tokens)
        training = made.trial(made.entrants[0], 0).recipe["training"]
        assert -(-training["steps"] // training["eval_every"]) == expected


def test_flops_become_fewer_steps_for_a_costlier_model(tmp_path: Path) -> None:
    made = planned(tmp_path, budget="1e12-flops", contestants=("gpt2", "vanilla"), assignments=("training.length=24",))
    for entrant in made.entrants:
        used = made.steps(entrant) * made.reading.tokens_per_step * entrant.cost.train_flops_per_token
        assert 0.9e12 < used <= 1e12


def test_seconds_become_steps_by_a_measured_pace(tmp_path: Path) -> None:
    made = planned(tmp_path, budget="30s")
    trial = made.trial(made.entrants[0], 0, seconds_per_step=0.1)
    assert trial.recipe["training"]["steps"] == 300
    assert trial.max_seconds == pytest.approx(33)
    calibration = made.calibration(made.entrants[0])
    assert calibration.calibrate
    assert calibration.max_seconds == 1.5
    assert calibration.key != trial.key


@pytest.mark.parametrize("by", ["params", "flops"])
def test_widths_are_matched_to_the_first(tmp_path: Path, by: str) -> None:
    made = planned(tmp_path, match=by, contestants=("vanilla", "gpt2", "bert"))
    first, *others = made.entrants
    size = {"params": lambda e: e.cost.core_params, "flops": lambda e: e.cost.flops_per_token}[by]
    assert first.matched == ""
    for entrant in others:
        assert abs(size(entrant) / size(first) - 1) < 0.02
        assert f"{by} " in entrant.matched
        assert "matched to vanilla" in entrant.matched
        # what was estimated is what is built
        built = build_model(entrant.recipe.model)
        assert sum(p.numel() for p in built.parameters()) == entrant.cost.params


def test_a_fixed_width_is_left_and_said(tmp_path: Path) -> None:
    table = tmp_path / "t.toml"
    table.write_text('[contestants.narrow]\nrelative = "gpt2"\nd_model = 32\n')
    made = planned(tmp_path / "out", match="params", contestants=("gpt2", str(table)))
    assert made.entrants[1].recipe.model.d_model == 32
    assert "was left" in made.entrants[1].matched


def test_the_key_is_what_decides_the_result(tmp_path: Path) -> None:
    made = planned(tmp_path)
    trial = made.trial(made.entrants[0], 0)
    same = dataclasses.replace(trial, nice=19, data={"name": "elsewhere"})
    assert same.key == trial.key
    changed = [
        dataclasses.replace(trial, seed=1),
        dataclasses.replace(trial, fingerprint="other"),
        dataclasses.replace(trial, threads=7),
        made.trial(made.entrants[1], 0),
        planned(tmp_path, budget="11k-tokens").trial(made.entrants[0], 0),
    ]
    clipped = planned(tmp_path, assignments=("training.clip=0.5",))
    changed.append(clipped.trial(clipped.entrants[0], 0))
    assert len({trial.key, *(other.key for other in changed)}) == 7


def test_a_trial_comes_back_from_its_folder(tmp_path: Path) -> None:
    made = planned(tmp_path)
    trial = made.trial(made.entrants[0], 0)
    trial.write(tmp_path / "x")
    assert Trial.read(tmp_path / "x") == trial
    assert Trial.read(tmp_path / "x").key == trial.key


def test_a_folder_keeps_the_layout_it_was_begun_with(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text(json.dumps({"jobs": 3, "threads": 5}))
    assert planned(tmp_path).layout == Layout(3, 5)
    # unless the user says otherwise
    assert planned(tmp_path, jobs=1).layout == Layout(1, 5)


def test_cards_say_what_changes_against_the_parent(tmp_path: Path) -> None:
    made = planned(tmp_path, contestants=("vanilla", "gpt2"))
    vanilla, gpt2 = (made.card(e, made.trial(e, 0)) for e in made.entrants)
    assert (vanilla.parent, vanilla.differences) == ("", ())
    assert gpt2.parent == "gpt"
    assert ("model.decoder.blocks[*].residual", "post-norm", "pre-norm") in gpt2.differences
    assert not [path for path, _, _ in gpt2.differences if path.startswith("training.")]
    steps = made.trial(made.entrants[1], 0).recipe["training"]["steps"]
    assert f"steps = {steps}" in gpt2.spec
    assert gpt2.steps == steps


def test_costs_are_those_that_training_counts() -> None:
    from kinfolk.train.run import flops_per_token, make_job

    for name in ("copy", "stdlib"):
        data = open_data(name)
        reading = read(data, 8, 16)
        for relative in ("gpt2", "vanilla", "bert"):
            recipe = make(relative, "tiny", vocab_size=data.tokenizer.vocab_size)
            recipe = recipe.replace(training=recipe.training.replace(batch_size=8, length=16))
            counted = flops_per_token(make_job(recipe, data, seed=0), recipe)
            # pairs of other batches are shorter, so their tokens cost a little less
            assert cost_of(recipe, reading).train_flops_per_token == pytest.approx(counted, rel=0.05)


def test_tokens_of_a_step_are_those_of_all_lengths() -> None:
    data = open_data("copy")
    batches = Batches(data.split("train"), batch_size=8, length=64)
    mean = statistics.fmean(tokens_of(batches.at(step)) for step in range(150))
    assert read(data, 8, 64).tokens_per_step == pytest.approx(mean, rel=0.03)


def test_a_window_of_a_decoder_costs_what_the_model_says() -> None:
    recipe = make("gpt2", "tiny")
    assert dataclasses.astuple(cost_of(recipe, window(32))) == pytest.approx(
        dataclasses.astuple(cost(recipe.model, 32)), rel=1e-12
    )


def test_a_window_costs_what_text_costs() -> None:
    data = open_data("stdlib")
    for relative in ("gpt2", "vanilla", "bert"):
        recipe = make(relative, "tiny", vocab_size=data.tokenizer.vocab_size)
        alike, real = cost_of(recipe, window(32)), cost_of(recipe, read(data, 8, 32))
        assert alike.params == real.params
        # a text has a few special tokens, which are never masked
        assert alike.flops_per_token == pytest.approx(real.flops_per_token, rel=0.02)


def test_operations_agree_with_a_count(tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    made = planned(tmp_path, data="stdlib", contestants=("gpt2", "vanilla"), assignments=("training.length=64",))
    tokens = torch.randint(0, 100, (2, 64))
    for entrant in made.entrants:
        model = build_model(entrant.recipe.model)
        inputs = (tokens,) if entrant.name == "gpt2" else (tokens[:, :32], tokens[:, 32:])
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(*inputs).logits  # noqa: B018
        assert counter.get_total_flops() / tokens.numel() == pytest.approx(entrant.cost.flops_per_token, rel=0.1)


def test_settings_are_checked(tmp_path: Path) -> None:
    for wrong in ({"seeds": 0}, {"jobs": 0}, {"match": "size"}, {"budget": "ten"}, {"timeout": "2M-tokens"}):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            Settings(**wrong)  # type: ignore[arg-type]
    assert Settings(budget="10s").limit == 330
    assert Settings(budget="1k-tokens").limit is None
    assert Settings(budget="1k-tokens", timeout="2h").limit == 7200


def test_the_same_question_has_the_same_folder() -> None:
    folder = Settings(data="copy").folder
    assert Settings(data="copy", jobs=2, threads=2, seeds=9).folder == folder
    assert Settings(data="sort").folder != folder
    assert Settings(out=Path("x")).folder == Path("x")


def test_folder_names_are_tame() -> None:
    assert [plan.slug(name) for name in ("gpt2", "../a b", "…")] == ["gpt2", "a-b", "contestant"]
