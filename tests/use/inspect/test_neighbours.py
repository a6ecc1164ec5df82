"""What is near a word: by the table the same everywhere, by states another thing each time."""

import json

import pytest
import torch

import kinfolk as kf
from kinfolk.core.errors import DataError
from kinfolk.data import Tokenizer
from kinfolk.use.inspect.neighbours import neighbours
from kinfolk.use.inspect.page import Findings, describe, render
from kinfolk.use.inspect.sight import look

TOY = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_len": 32}
BYTES = Tokenizer.byte()
TEXT = "the bank of the river. the bank of money! a river, some money, and the old bank of the river"


def model(name, tokenizer=BYTES):
    return kf.build(kf.relative(name, size="tiny", vocab_size=tokenizer.vocab_size, **TOY), seed=1)


def letters():
    """Return a tokenizer with one id for each letter."""
    return Tokenizer.characters(sorted(set(TEXT)))


def test_the_table_decides_what_is_near_without_a_context():
    tokenizer = letters()
    m = model("gpt2", tokenizer)
    with torch.no_grad():
        # every word has one long direction of its own letters; "river" and "money" are made alike
        table = m.embedding.weight
        table.normal_(generator=torch.Generator().manual_seed(0))
        for a, b in zip("river", "money", strict=True):
            table[tokenizer.encode(a)[0]] = table[tokenizer.encode(b)[0]]
    found = neighbours(m, tokenizer, TEXT, "money")
    assert found.static[0].word == "river"
    cosines = [one.cosine for one in found.static]
    assert cosines == sorted(cosines, reverse=True)
    assert "money" not in [one.word for one in found.static]


def test_cosines_are_those_of_centred_means_by_hand():
    m = model("gpt2")
    words = ["the", "bank", "of", "river", "money", "a", "some", "and", "old"]
    chunks = {word: word if word == "the" else f" {word}" for word in words}
    rows = torch.stack([m.embedding.weight[list(BYTES.encode(chunks[w]))].mean(0) for w in words]).double()
    rows = rows - rows.mean(0)
    want = torch.cosine_similarity(rows[words.index("bank")], rows[words.index("old")], dim=0)
    found = neighbours(m, BYTES, TEXT, "bank", n=20)
    got = {one.word: one.cosine for one in found.static}
    assert set(got) == set(words) - {"bank"}
    assert got["old"] == pytest.approx(float(want.detach()), abs=1e-6)


@pytest.mark.parametrize("name", ["gpt2", "roberta", "vanilla", "performer"])
def test_every_occurrence_has_neighbours_of_its_own(name):
    m = model(name)
    found = neighbours(m, BYTES, TEXT, "bank", n=3)
    assert m.training
    assert len(found.contextual) == 3
    assert all("[bank]" in one.around for one in found.contextual)
    assert found.contextual[0].around == "the [bank] of the river."
    assert all(len(one.near) == 3 for one in found.contextual)
    assert all(one.place not in [near.place for near in one.near] for one in found.contextual)
    near = [tuple(n.place for n in one.near) for one in found.contextual]
    assert len(set(near)) > 1


def test_states_are_those_of_the_layer_that_is_asked_for():
    m = model("roberta")
    text = "one two three"
    found = neighbours(m, BYTES, text, "two", n=2, layer=0)
    assert found.layer == "encoder.0"
    with torch.no_grad():
        states = m.eval()(torch.tensor([list(BYTES.encode(text))]), taps=("hidden",)).taps["encoder.0.hidden"][0]
    means = torch.stack([states[0:3].mean(0), states[3:7].mean(0), states[7:13].mean(0)]).double()
    means = means - means.mean(0)
    want = torch.cosine_similarity(means[1], means[[0, 2]])
    got = {near.word: near.cosine for near in found.contextual[0].near}
    assert [got["one"], got["three"]] == pytest.approx(want.tolist(), abs=1e-5)
    assert neighbours(m, BYTES, text, "two").layer == "last"


def test_a_long_text_is_read_in_windows():
    m = model("gpt2")
    found = neighbours(m, BYTES, "a quiet river and " * 40 + "some money", "money", n=2)
    assert found.contextual[0].around.endswith("[money]")
    assert len(found.contextual[0].near) == 2


def test_what_is_not_there_is_named():
    with pytest.raises(DataError, match=r"'banks' does not occur .*did you mean 'bank'"):
        neighbours(model("gpt2"), BYTES, TEXT, "banks")
    with pytest.raises(DataError, match="0 to 1"):
        neighbours(model("gpt2"), BYTES, TEXT, "bank", layer=2)


def test_the_page_has_them():
    m = model("gpt2")
    found = neighbours(m, BYTES, TEXT, "bank", n=2)
    sight = look(m, BYTES, "the bank")
    data = describe(sight, [False] * len(sight.tokens), Findings(neighbours=found))
    assert json.loads(json.dumps(data))["neighbours"]["static"][0]["word"] == found.static[0].word
    page = render("Inside", data)
    assert "A word without and with its context" in page
    assert "the [bank] of the river." in page
