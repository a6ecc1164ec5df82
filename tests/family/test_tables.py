"""Published tables: rows as printed, recipes that build and learn, parameters as printed."""

import functools

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

NARANG = table("narang")
ROWS = {row.key: row for row in NARANG.rows}
ABLE = [key for key, row in ROWS.items() if row.change]
TOY = {"d_model": 24, "n_layers": 2, "n_heads": 6, "d_ff": 48, "vocab_size": 40, "max_len": 64, "n_sentinels": 8}
SYNTHESIZERS = {key for key in ROWS if key.startswith("synthesizer")}
# rows whose parameters are not those printed; each says in the table how it differs
OTHERWISE = {"dynamic-convolution", "lightweight-convolution", "universal"} | SYNTHESIZERS


@functools.cache
def recipe(key):
    # depths are traded in sixths
    return NARANG.recipe(ROWS[key], "tiny", **(TOY | {"n_layers": 6 if key.endswith("layers") else 2}))


def model(key):
    """Return a model away from its beginning, where biases are zero and some stacks the identity."""
    m, g = kf.build(recipe(key), seed=1).double().eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in m.parameters():
            p += 0.05 * torch.randn(p.shape, generator=g, dtype=p.dtype)
    return m


@functools.cache
def batch(seed=0):
    tokens = torch.randint(7, 40, (2, 49), generator=torch.Generator().manual_seed(seed))
    return recipe("vanilla").objective.prepare(Batch(index=torch.arange(2), tokens=tokens), Rng(0), Vocabulary(40))


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


def test_rows_with_other_parameters_say_why():
    def off(key):
        found = cost(NARANG.recipe(ROWS[key]).model, 114, 512).params / 1e6
        return abs(found - ROWS[key].published.params) > 1

    assert all(ROWS[key].differs for key in OTHERWISE)
    assert {key for key in OTHERWISE if off(key)} == OTHERWISE


@pytest.mark.parametrize("key", ABLE)
def test_every_row_builds_and_all_of_it_learns(key):
    r = recipe(key)
    assert (r.name, r.model.vocab_size) == (ROWS[key].name, 48)
    assert loads(Recipe, dumps(r)) == r
    m = model(key)
    assert cost(r.model, 16).params == m.n_params
    learner = Learner(m.train(), r.objective, Vocabulary(40))
    loss = learner(batch())
    (loss.total / loss.count + loss.side).backward()
    assert loss.total.isfinite()
    unused = [name for name, p in learner.named_parameters() if p.grad is None]
    assert unused == []


@pytest.mark.parametrize("key", ABLE)
def test_no_row_sees_the_tokens_that_it_predicts(key):
    m = model(key)
    before = m.run(batch()).hidden
    tokens = batch().tokens.clone()
    tokens[:, 5:] = 20
    after = m.run(batch().replace(tokens=tokens)).hidden
    torch.testing.assert_close(after[:, :5], before[:, :5], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("key", ABLE)
def test_padding_changes_nothing(key):
    m, alone = model(key), batch()
    long = torch.full((2, 3), 11)
    real = torch.ones_like(alone.source, dtype=torch.bool), torch.ones_like(alone.tokens, dtype=torch.bool)
    source_keep, keep = (torch.cat([x, torch.zeros(2, 3, dtype=torch.bool)], 1) for x in real)
    source, tokens = torch.cat([alone.source, long], 1), torch.cat([alone.tokens, long], 1)
    padded = Batch(index=alone.index, source=source, source_keep=source_keep, tokens=tokens, keep=keep)
    n = alone.tokens.shape[1]
    torch.testing.assert_close(m.run(padded).logits[:, :n], m.run(alone).logits, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("key", ABLE)
def test_token_by_token_is_the_same(key):
    m, whole = model(key), batch()
    expected, state = m.run(whole).logits, m.new_state(2, 30)
    for i in range(whole.tokens.shape[1]):
        here = Batch(index=whole.index, source=whole.source, tokens=whole.tokens[:, i : i + 1])
        torch.testing.assert_close(m.run(here, state).logits[:, 0], expected[:, i], rtol=1e-9, atol=1e-11)


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
    assert NAMES == ("narang",)


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
