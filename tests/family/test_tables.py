"""Published tables: rows as printed, recipes that build and learn, parameters as printed."""

import functools
import inspect
from pathlib import Path

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, loads
from kinfolk.core.rng import Rng
from kinfolk.family.recipe import Recipe
from kinfolk.family.tables import NAMES, NotAtThisSizeError, pending, slug, table
from kinfolk.models.cost import cost
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from tests.cover import kinds_of, sampled
from tests.family import test_relatives as family

NARANG = table("narang")
ROWS = {row.key: row for row in NARANG.rows}
ABLE = [key for key, row in ROWS.items() if row.change]
TOY = {"d_model": 24, "n_layers": 2, "n_heads": 6, "d_ff": 48, "vocab_size": 40, "max_len": 64, "n_sentinels": 8}
SYNTHESIZERS = {key for key in ROWS if key.startswith("synthesizer")}
# rows whose parameters are not those printed; each says in the table how it differs
OTHERWISE = {"dynamic-convolution", "lightweight-convolution"} | SYNTHESIZERS


# what is asked of every relative and of every row, and in which cases
CHECKS = {
    "builds_and_runs_at_any_length": [()],
    "save_and_load_are_bit_equal": [()],
    "nothing_leaks_from_the_future": [()],
    "padding_and_what_stands_there_change_nothing": [()],
    "source_padding_changes_nothing": [()],
    "an_example_does_not_see_its_neighbours_in_the_batch": [()],
    "every_parameter_gets_a_finite_gradient": [()],
    "the_fused_loss_is_the_cross_entropy_of_the_logits": [()],
    "cached_decoding_equals_the_full_pass": [()],
    "the_closed_form_counts_the_parameters": [()],
    "the_closed_form_counts_the_operations": [()],
    "the_closed_form_counts_what_is_kept_for_the_backward_pass": [()],
    "recomputing_blocks_changes_no_gradient": [()],
    "survives_toml": [()],
}


def _numbers(key):
    # two thirds of three layers are two
    return TOY | {"n_layers": 3 if key == "8-layers" else 2}


@functools.cache
def recipe(key):
    return NARANG.recipe(ROWS[key], "tiny", **_numbers(key))


def made(key, size="base", **numbers):
    """Make a row as a relative is made; one that trades depth, of as many layers as it can trade."""
    own = {"n_layers": _numbers(key)["n_layers"]} if key.endswith("layers") and size != "base" else {}
    return NARANG.recipe(ROWS[key], size, **(numbers | own))


@pytest.fixture
def as_relatives(monkeypatch):
    """Let the tests of relatives find rows under the names of relatives."""
    monkeypatch.setattr(family, "recipe", recipe)
    monkeypatch.setattr(family, "numbers", lambda key, **changes: _numbers(key) | changes)
    monkeypatch.setattr(kf, "relative", made)
    monkeypatch.setattr(kf, "about", lambda key: NARANG.about(ROWS[key]))


@pytest.mark.usefixtures("as_relatives")
@pytest.mark.parametrize("key", sampled(ABLE, "rows", features=lambda key: kinds_of(recipe(key))))
@pytest.mark.parametrize("check", CHECKS)
def test_what_holds_for_relatives_holds_for_rows(key, check, tmp_path):
    function = getattr(family, f"test_{check}")
    given = {"tmp_path": tmp_path} if "tmp_path" in inspect.signature(function).parameters else {}
    for case in CHECKS[check]:
        function(key, *case, **given)
    assert recipe(key).name == ROWS[key].name


def test_a_table_has_the_rows_of_the_paper():
    assert len(NARANG.rows) == 52
    assert len({row.name for row in NARANG.rows}) == len(ROWS) == 52
    assert NARANG.rows[0].published.final == 1.838
    best = min((row for row in NARANG.rows if row.published.final), key=lambda row: row.published.final)
    assert best.name == "Switch Transformer"
    for row in NARANG.rows:
        assert bool(row.change) != bool(row.missing)
        assert NARANG.about(row).parent == (None if row is NARANG.rows[0] else "Vanilla Transformer")


@pytest.mark.parametrize("key", [key for key in ABLE if key not in OTHERWISE])
def test_the_parameters_are_those_printed(key):
    found = cost(NARANG.recipe(ROWS[key]).model, 114, 512).params / 1e6
    # the table rounds to a million, up or down; experts have biases here, 0.7 million in all
    assert found == pytest.approx(ROWS[key].published.params, abs=1.0, rel=2e-3)


def test_the_docs_list_every_row_with_its_parameters():
    said = (Path(__file__).parents[2] / "docs" / "table.md").read_text(encoding="utf-8")
    for row in NARANG.rows:
        found = cost(NARANG.recipe(row).model, 114, 512).params / 1e6
        assert f"| {row.name} | {found:.1f} | {row.published.params:g} |" in said
        assert row.differs in said
    assert f"## {52 - len(OTHERWISE)} rows are equal" in said


def test_rows_with_other_parameters_say_why():
    def off(key):
        found = cost(NARANG.recipe(ROWS[key]).model, 114, 512).params / 1e6
        return abs(found - ROWS[key].published.params) > 1

    assert all(ROWS[key].differs for key in OTHERWISE)
    assert {key for key in OTHERWISE if off(key)} == OTHERWISE


def test_rows_are_picked_by_name_by_key_and_by_number():
    assert NARANG.pick("") == NARANG.rows
    assert [row.key for row in NARANG.pick("swish, GeLU")] == ["vanilla", "gelu", "swish"]
    assert [row.key for row in NARANG.pick("24 layers, d_ff = 1536, H = 6,fixup")] == ["vanilla", "fixup", "24-layers"]
    assert [row.key for row in NARANG.pick("Rezero + LayerNorm")] == ["vanilla", "rezero-layernorm"]
    eight = NARANG.pick("8")
    assert len(eight) == 8
    assert eight[0].key == "vanilla"
    # from the best to the worst
    assert {"switch", "block-sharing-factorized"} <= {row.key for row in eight}
    assert all(row.change for row in eight)
    assert [row.key for row in NARANG.pick("1")] == ["vanilla"]
    assert len(NARANG.pick("1000")) == sum(bool(row.change and row.published.final) for row in NARANG.rows)


def test_what_is_unknown_gets_the_nearest_match():
    with pytest.raises(SpecError, match=r"row 'gelloo' of narang: unknown; did you mean 'gelu'"):
        NARANG.pick("swish,gelloo")
    with pytest.raises(SpecError, match=r"table 'narangg': unknown; did you mean 'narang'"):
        table("narangg")
    with pytest.raises(SpecError, match="at least 1"):
        NARANG.pick("0")
    assert NAMES == ("narang", "modern")


def test_a_row_that_waits_for_a_part_says_so():
    waiting = NARANG.row("gelu").__class__(
        name="New", key="new", published=ROWS["gelu"].published, changes="all", **pending("the new one")
    )
    with pytest.raises(SpecError, match=r"row 'New' of narang: not available: the new one is not part of the family"):
        NARANG.recipe(waiting)
    assert slug("Factorized & shared embeddings") == "factorized-and-shared-embeddings"


def test_depth_is_traded_for_width_or_refused():
    def shape(key, n_layers):
        stack = NARANG.recipe(ROWS[key], "tiny", **(TOY | {"n_layers": n_layers})).model.encoder
        look, think = stack.blocks[0].parts
        return len(stack.order), think.d_ff, look.n_heads, look.d_head

    assert [shape(key, 6) for key in ("vanilla", "24-layers", "18-layers", "8-layers", "6-layers")] == [
        (6, 48, 6, 0),
        (12, 24, 3, 4),
        (9, 32, 4, 4),
        (4, 72, 9, 4),
        (3, 96, 12, 4),
    ]
    with pytest.raises(NotAtThisSizeError, match="8 of 12 layers cannot be scaled to a model of 2"):
        shape("8-layers", 2)


MODERN = {row.key: row for row in table("modern").rows}


@pytest.mark.parametrize("key", MODERN)
def test_a_modern_row_changes_one_thing_of_the_body_and_learns(key):
    """It is another recipe than the body's, survives TOML, does not see the future and has a gradient everywhere."""
    made = table("modern").recipe(MODERN[key], "tiny", d_model=32, n_layers=2, n_heads=4, d_ff=48, vocab_size=31)
    plain = table("modern").recipe(
        table("modern").rows[0], "tiny", d_model=32, n_layers=2, n_heads=4, d_ff=48, vocab_size=31
    )
    same = (made.model, made.objective, made.training) == (plain.model, plain.objective, plain.training)
    assert same == (key == "llama-body")
    assert bool(MODERN[key].claim) != same
    assert loads(Recipe, dumps(made)) == made
    learn = Learner(kf.build(made).double(), made.objective, Vocabulary(31)).train()
    tokens = torch.randint(7, 31, (2, 13), generator=torch.Generator().manual_seed(0))
    loss = learn(learn.prepare(Batch(index=torch.arange(2), tokens=tokens), Rng(0)))
    (loss.total / loss.count + loss.side).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learn.parameters())
    model = learn.model.eval()
    later = torch.cat([tokens[:, :7], tokens[:, 7:].flip(1)], 1)
    torch.testing.assert_close(model(later).logits[:, :7], model(tokens).logits[:, :7], rtol=1e-9, atol=1e-9)
