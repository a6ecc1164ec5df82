"""Tactics: what each lets move, and that it changes nothing where it says so."""

import pytest
import torch
from safetensors.torch import load_file

from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, loads
from kinfolk.family.building import build
from kinfolk.family.recipe import Recipe
from kinfolk.layers.adapters import is_added
from kinfolk.models.folder import load_weights
from kinfolk.objectives.tasks.registry import named
from kinfolk.runs.run import Run
from kinfolk.train import RunOptions
from kinfolk.train.finetune.recipe import Effort
from kinfolk.train.finetune.run import finetune, prepare, write_start
from kinfolk.train.finetune.source import open_source
from kinfolk.train.finetune.tactics import parse
from kinfolk.train.run import resume
from kinfolk.use.compress.maps import plain
from tests.train.finetune.conftest import make_run

QUIET = RunOptions(quiet=True, tensorboard=False, threads=1)
SHORT = Effort(steps=6, batch_size=8, lr=1e-2)
CLASSIFY = named("classify")


def made(run, files, tactic="plain", *assignments):
    given = {"effort": SHORT, "tactic": tactic, "assignments": ("training.precision=fp32", *assignments)}
    return prepare(open_source(run), CLASSIFY, files, **given)


def begun(prepared, tmp_path):
    """The model as it begins."""
    file, _ = write_start(prepared, tmp_path / "start.safetensors")
    model = build(prepared.recipe, 1)
    load_weights(model, file)
    return model.eval()


def weights_of(prepared, out):
    finetune(prepared, out, options=QUIET)
    return load_file(next((out / "checkpoints").glob("step-*6")) / "model.safetensors")


def test_equal_groups_are_plain_training_to_the_bit(run, files, tmp_path):
    # clipped at every step, so that the norm over all groups counts
    clip = "training.clip=0.01"
    together = weights_of(made(run, files, "plain", clip), tmp_path / "a")
    # a group for each layer, with and without decay, whose turns are over before the first step
    apart = made(run, files, "plain", clip, 'training.groups={kind = "layer-wise", factor = 1.0, turn = 1e-9}')
    assert len(apart.recipe.training.build_optimiser(build(apart.recipe)).param_groups) == 8
    found = weights_of(apart, tmp_path / "b")
    assert all(torch.equal(found[name], x) for name, x in together.items())
    changed = weights_of(made(run, files, "layer-wise=0.5", clip), tmp_path / "c")
    assert not all(torch.equal(changed[name], x) for name, x in together.items())


@pytest.mark.parametrize("tactic", ["frozen", "frozen+mix", "bitfit", "lora=2", "adapters=4"])
def test_what_does_not_learn_stays_to_the_bit(run, files, tmp_path, tactic):
    prepared = made(run, files, tactic)
    ended = weights_of(prepared, tmp_path / "out")
    start = load_file(tmp_path / "out" / "start.safetensors")
    moved = {name for name, x in start.items() if not torch.equal(ended[name], x)}
    allowed = {
        "frozen": lambda name: False,
        "frozen+mix": lambda name: ".layer_" in name,
        "bitfit": lambda name: name.endswith("bias"),
        "lora=2": is_added,
        "adapters=4": lambda name: is_added(name) or "norm" in name,
    }[tactic]
    assert {name for name in moved if not name.startswith("head.")} <= {name for name in start if allowed(name)}
    assert any(name.startswith("head.") for name in moved)
    if tactic != "frozen":
        assert any(allowed(name) for name in moved)


@pytest.mark.parametrize("tactic", ["lora=2", "adapters=4"])
def test_what_is_added_adds_nothing_at_first(run, files, tmp_path, tactic):
    bare, more = made(run, files), made(run, files, tactic)
    # the head is drawn after the body, so it is given to both
    one, two = begun(bare, tmp_path), begun(more, tmp_path)
    two.head.load_state_dict(one.head.state_dict())
    tokens = torch.randint(7, 20, (3, 9), generator=torch.Generator().manual_seed(0))
    assert sum(p.numel() for p in two.parameters()) > sum(p.numel() for p in one.parameters())
    torch.testing.assert_close(one(tokens).logits, two(tokens).logits, rtol=0, atol=1e-6)
    assert loads(Recipe, dumps(more.recipe)) == more.recipe


def test_lora_multiplied_out_is_a_plain_model(run, files, tmp_path):
    finetune(made(run, files, "lora=2"), tmp_path / "out", options=QUIET)
    learner = Run.open(tmp_path / "out").learner()
    model = learner.model.eval()
    merged = plain(model).eval()
    tokens = torch.randint(7, 20, (3, 9), generator=torch.Generator().manual_seed(0))
    assert not any(is_added(name) for name in merged.state_dict())
    torch.testing.assert_close(model(tokens).logits, merged(tokens).logits, rtol=1e-5, atol=1e-5)
    assert bool(model.encoder.blocks[0].parts[0].qkv.up.any())


def test_what_was_tuned_is_tuned_again(run, files, tmp_path):
    finetune(made(run, files, "lora=2"), tmp_path / "lora", options=QUIET)
    again = made(tmp_path / "lora", files)
    assert again.recipe.model.head == made(run, files).recipe.model.head
    moved = write_start(again, tmp_path / "start.safetensors")[1]
    # the same classes, so that even the head is taken over
    assert moved.fresh == moved.left == ()


def test_layers_thaw_from_the_top(run, files, tmp_path):
    prepared = made(run, files, "gradual=1.0")
    # two layers, so the head learns from the first step on, then every two of six steps one more
    assert prepared.recipe.training.groups.turn == pytest.approx(1 / 3)
    ended = weights_of(prepared, tmp_path / "out")
    start = load_file(tmp_path / "out" / "start.safetensors")
    same = {name for name, x in start.items() if torch.equal(ended[name], x)}
    assert {name for name in start if name.startswith("embedding.")} <= same
    assert "encoder.blocks.1.parts.0.qkv.weight" not in same
    assert "encoder.blocks.0.parts.0.qkv.weight" not in same


def test_rates_suit_the_width_and_the_tactic_unless_one_is_asked_for(run, files):
    usual = {"effort": Effort(steps=2)}
    rates = [
        prepare(open_source(run), CLASSIFY, files, tactic=tactic, **more).recipe.training.optimiser.lr
        for tactic, more in (("plain", usual), ("lora=2", usual), ("lora=2", {"effort": Effort(steps=2, lr=1e-3)}))
    ]
    assert rates == pytest.approx([5e-5 * 768 / 16, 5e-4 * 768 / 16, 1e-3])


def test_ulmfit_is_its_three_tactics(run, files):
    training = made(run, files, "ulmfit").recipe.training
    assert training.groups.factor == pytest.approx(1 / 2.6)
    assert training.groups.turn == pytest.approx(0.5 / 3)
    assert training.schedule.kind == "slanted-triangular"


@pytest.mark.parametrize("tactic", ["gradual=0.9", "mixout=0.5", "lora=2"])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(run, files, tmp_path, tactic, monkeypatch):
    prepared = made(run, files, tactic, "training.save_every=3")
    whole = weights_of(prepared, tmp_path / "whole")

    from kinfolk.train import loop

    steps = loop.Session.update

    def stop_at_three(session, stop):
        outcome = steps(session, stop)
        if session.counters.step == 3:
            session.save()
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(loop.Session, "update", stop_at_three)
    with pytest.raises(KeyboardInterrupt):
        finetune(prepared, tmp_path / "halves", options=QUIET)
    monkeypatch.undo()
    monkeypatch.setenv("KINFOLK_CACHE", str(tmp_path / "cache"))
    resume(tmp_path / "halves", options=QUIET)
    again = load_file(next((tmp_path / "halves" / "checkpoints").glob("step-*6")) / "model.safetensors")
    assert all(torch.equal(again[name], x) for name, x in whole.items())


def test_the_top_begins_anew(run, files, tmp_path):
    prepared = made(run, files, "reinit=1")
    file, moved = write_start(prepared, tmp_path / "start.safetensors")
    start, source = load_file(file), load_file(run / "model.safetensors")
    below, above = (f"encoder.blocks.{i}.parts.0.out.weight" for i in (0, 1))
    assert torch.equal(start[below], source[below])
    assert above in moved.fresh
    assert {name for name in moved.fresh if not name.startswith("head.")} == {
        name for name in source if name.startswith("encoder.blocks.1.")
    }
    with pytest.raises(SpecError, match="has 2 blocks"):
        write_start(made(run, files, "reinit=3"), tmp_path / "other.safetensors")


def test_noise_and_recomputing_do_not_go_together(words, files, tmp_path):
    reversible = make_run(tmp_path / "reversible", "reversible", words)
    with pytest.raises(SpecError, match="would find other weights"):
        made(reversible, files, "mixout")


def test_a_tactic_that_nobody_knows_is_refused():
    with pytest.raises(SpecError, match="did you mean 'lora'"):
        parse("lore=2")
    with pytest.raises(SpecError, match="takes no number"):
        parse("frozen=2")
    with pytest.raises(SpecError, match="lora and layer-wise both say what moves"):
        parse("lora=2+layer-wise=0.9")
    assert parse("layer-wise=0.9+gradual").parts == (("layer-wise", 0.9), ("gradual", 0.5))
    assert parse("lora=4+reinit=2").parts == (("lora", 4.0), ("reinit", 2.0))
