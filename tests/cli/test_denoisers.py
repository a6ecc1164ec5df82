"""`kin train`, `resume`, `eval` and `generate` with relatives whose objectives corrupt text."""

import json

import pytest

from kinfolk.cli.main import main
from kinfolk.core.plain import load
from kinfolk.family.recipe import Recipe

SMALL = ("d_model=16", "n_heads=2", "d_ff=32", "training.batch_size=4", "training.length=48", "training.eval_batches=1")
TEXT = "stdlib:megabytes=1"


def train(what, data, out, *sets, steps=3):
    words = ["train", what, "--data", data, "--steps", str(steps), "--out", str(out), "--quiet", "--no-tensorboard"]
    return main([*words, *(word for number in sets for word in ("--set", number))])


@pytest.mark.parametrize("name", ["t5", "bart", "mass"])
def test_the_whole_way(name, tmp_path, capsys):
    out = tmp_path / name
    assert train(name, TEXT, out, *SMALL) == 0
    recipe = load(Recipe, out / "spec.toml")
    assert recipe.model.vocab_size == 263 + (100 if name == "t5" else 0)
    assert main(["resume", str(out)]) == 0
    capsys.readouterr()
    assert main(["eval", str(out), "--batches", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["measures"]) == 1
    assert main(["generate", str(out), "--prompt", "def <0>(x)", "--max-new", "8", "--greedy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ids"][0] == 1
    # the spec of one run, for other data: pairs of a smaller vocabulary
    paths = ("training.batch_size=4", "training.length=16", "training.eval_batches=1")
    assert train(str(out / "spec.toml"), "copy:length=5,valid=20", tmp_path / "pairs", *paths) == 0
    tuned = load(Recipe, tmp_path / "pairs" / "spec.toml")
    assert tuned.objective.kind == "sequence-to-sequence"
    assert tuned.model.vocab_size == 27 + (100 if name == "t5" else 0)


def test_any_encoder_decoder_takes_any_of_them(tmp_path):
    """An objective given by name makes room for what it adds."""
    sentinels = "objective={kind = 'span-corruption', n_sentinels = 30}"
    assert train("vanilla", TEXT, tmp_path / "a", *SMALL, sentinels) == 0
    assert load(Recipe, tmp_path / "a" / "spec.toml").model.vocab_size == 293


def test_too_small_a_vocabulary_is_refused(tmp_path, capsys):
    assert train("t5", TEXT, tmp_path / "a", *SMALL, "model.vocab_size=300") == 2
    assert "263 tokens of stdlib:megabytes=1 and the 100 of objective 'span-corruption'" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
