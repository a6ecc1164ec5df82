"""Names, files and tables become recipes; what stands for nothing is refused before anything runs."""

from pathlib import Path

import pytest

from kinfolk.contests.contestants import FIRST, gather
from kinfolk.core import paths
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps
from kinfolk.family.making import make
from kinfolk.runs.fit import Needs

TABLE = """
[contestants.deep]
relative = "gpt2"
n_layers = 3
"training.optimiser.lr" = 3e-4

[contestants.small]
relative = "gpt2"
size = "small"
d_model = 64
"""


def test_nobody_named_means_the_first_relatives() -> None:
    assert tuple(contestant.name for contestant in gather([])) == FIRST
    assert [contestant.name for contestant in gather(["first"])] == list(FIRST)


def test_a_relative_takes_the_vocabulary_of_the_data_and_what_is_set() -> None:
    (gpt2,) = gather(["gpt2"], assignments=["training.length=33", "n_layers=5"])
    recipe = gpt2.recipe(Needs(77))
    assert (recipe.model.vocab_size, recipe.training.length) == (77, 33)
    # a number of the relative needs no path
    assert len(paths.get(recipe, "model.decoder.blocks")) == 5
    assert gpt2.scalable
    wide = gpt2.recipe(Needs(77), gpt2.widths(64))
    assert wide.model.d_model == 64
    assert paths.get(wide, "model.decoder.blocks[0].parts[1].d_ff") == 256
    (fixed,) = gather(["gpt2"], assignments=["d_model=64"])
    assert not fixed.scalable


def test_a_table_gives_names_and_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(TABLE)
    deep, small = gather([str(tmp_path / "t.toml")])
    assert len(deep.recipe(Needs(50)).model.decoder.blocks) == 3  # type: ignore[union-attr]
    assert deep.recipe(Needs(50)).training.optimiser.lr == 3e-4
    assert (small.name, small.size, small.recipe(Needs(50)).model.d_model) == ("small", "small", 64)
    # a width that the user fixed is not the comparison's to change
    assert not small.scalable
    assert deep.scalable


def test_a_spec_file_and_a_run_are_taken_as_written(tmp_path: Path) -> None:
    text = dumps(make("gpt", size="tiny", n_layers=1))
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "spec.toml").write_text(text)
    mine, old = gather([tmp_path / "mine.toml", tmp_path / "old"])
    assert (mine.name, old.name) == ("mine", "old")
    assert mine.recipe(Needs(99)).model.vocab_size == 99
    assert mine.recipe(Needs(99)).model == old.recipe(Needs(99)).model
    assert (mine.scalable, mine.about, mine.parent(Needs(99))) == (False, None, None)


def test_parents_have_the_same_numbers() -> None:
    vanilla, gpt2 = gather(["vanilla", "gpt2"], assignments=["training.length=33"])
    assert vanilla.parent(Needs(50)) is None
    parent = gpt2.parent(Needs(50))
    assert parent is not None
    assert (parent.name, parent.model.vocab_size, parent.training.length) == ("gpt", 50, 33)
    assert parent.model.max_len == gpt2.recipe(Needs(50)).model.max_len


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["gtp2"], "did you mean 'gpt2'"),
        (["gpt", "gpt"], "named twice"),
        (["nowhere.toml"], "cannot be read"),
    ],
)
def test_refusals(names: list[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        gather(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "not valid TOML"),
        ("x = 1", "unknown key"),
        ("[contestants.a]\nn_layers = 2", "contestants.a: expected a table with relative"),
        ('[contestants.a]\nrelative = "gtp2"', "did you mean 'gpt2'"),
        ('y = 1\n[contestants.a]\nrelative = "gpt2"', "nothing else"),
    ],
)
def test_refusals_of_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(SpecError, match=message):
        gather([str(tmp_path / "t.toml")])


def test_an_unknown_size_is_refused() -> None:
    with pytest.raises(SpecError, match="size: unknown choice 'tinny'; did you mean 'tiny'"):
        gather(["gpt"], size="tinny")
