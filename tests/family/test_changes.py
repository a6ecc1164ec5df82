"""`relative+change`: by path, by number, by kind, and by what another relative changes."""

import pytest

from kinfolk.contests.contestants import gather
from kinfolk.core.errors import SpecError
from kinfolk.core.nested import nested
from kinfolk.core.paths import get
from kinfolk.family.building import build
from kinfolk.family.changes import parted
from kinfolk.family.making import make
from kinfolk.runs.fit import Needs


def test_names_are_taken_apart() -> None:
    assert parted("gpt2") == ("gpt2", ())
    assert parted("gpt2+rotary+training.optimiser.lr=1e+2") == ("gpt2", ("rotary", "training.optimiser.lr=1e+2"))


def test_numbers_and_paths() -> None:
    recipe = make("gpt2+n_layers=3+model.dropout=0.25", "tiny")
    assert (len(recipe.model.decoder.order), recipe.model.dropout, recipe.name) == (
        3,
        0.25,
        "gpt2+n_layers=3+model.dropout=0.25",
    )
    assert recipe.replace(name="gpt2") == make("gpt2", "tiny", n_layers=3, **{"model.dropout": 0.25})


def test_a_kind_replaces_its_axis() -> None:
    rms = make("gpt2+rms-norm", "tiny")
    kinds = {part.kind for path, part in nested(rms.model) if path.endswith("norm")}
    assert kinds == {"rms-norm", "none"}
    rotary = make("gpt2+rotary", "tiny")
    assert get(rotary, "model.embedding.position").kind == "none"
    assert {p.kind for p in get(rotary, "model.decoder.blocks[*].parts[0].position")} == {"rotary"}
    back = make("gpt2+rotary+learned", "tiny")
    assert back.replace(name="gpt2") == make("gpt2", "tiny")
    build(rotary, 0)


def test_a_relative_stands_for_what_it_changes() -> None:
    """On its own parent the change is the relative itself; elsewhere it is the same change."""
    assert make("gpt2+alibi", "tiny").model == make("alibi", "tiny").model
    other = make("gpt2+n_layers=3+alibi", "tiny")
    assert other.model == make("alibi", "tiny", n_layers=3).model


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpt2+rotry", "'rotry' is not known; did you mean 'rotary'"),
        ("gpt3+rotary", "unknown relative 'gpt3'"),
        ("gpt2+n_layer=3", "gpt2 has no such number; did you mean 'n_layers'"),
    ],
)
def test_what_is_not_known_is_refused(name: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        make(name, "tiny")


def test_contestants_may_be_changed_relatives() -> None:
    one, two = gather(["gpt2", "gpt2+rotary"])
    assert (two.name, two.relative, two.changes) == ("gpt2+rotary", "gpt2", "gpt2 with rotary")
    needs = Needs(300)
    assert two.recipe(needs).model != one.recipe(needs).model
    assert two.parent(needs) == one.recipe(needs)


def test_an_optimiser_is_a_change() -> None:
    recipe = make("gpt2+muon", "tiny")
    assert recipe.training.optimiser.kind == "muon"
    assert recipe.model == make("gpt2", "tiny").model
    free = make("gpt2+schedule-free", "tiny").training
    assert (free.optimiser.kind, free.schedule.kind) == ("schedule-free", "constant")
    assert free.schedule.warmup == make("gpt2", "tiny").training.schedule.warmup
