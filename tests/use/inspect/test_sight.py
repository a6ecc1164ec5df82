"""What is shown is what was computed, for every relative."""

import base64
import json
import re

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError
from kinfolk.data import Tokenizer
from kinfolk.use.inspect.page import Findings, describe, render
from kinfolk.use.inspect.sight import look, see

TOY = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "max_len": 64}
TOKENIZER = Tokenizer.byte()
NAMES = [name for name in kf.relatives() if kf.about(name).input == "tokens"]


def model(name):
    return kf.build(kf.relative(name, size="tiny", vocab_size=TOKENIZER.vocab_size, **TOY), seed=1)


@pytest.mark.parametrize("name", NAMES)
def test_every_relative_can_be_looked_at(name):
    m = model(name)
    two = m.spec.topology == "encoder-decoder"
    sight = look(m, TOKENIZER, "so it is", "it is so" if two else None)
    assert m.training
    for one in sight.maps:
        assert one.weights_HLM.shape[1] in (len(sight.tokens), len(sight.source)) or one.keys == "slots"
        if one.keys == "same":
            assert one.weights_HLM.shape[1] == one.weights_HLM.shape[2]
    data = describe(sight, [False] * len(sight.tokens), Findings())
    assert json.loads(json.dumps(data, allow_nan=True))["tokens"] == list(sight.labels)
    assert "<canvas" not in render("<script>", data).split("<body>")[0]


def test_the_numbers_of_the_page_are_those_of_the_taps():
    m = model("gpt2").eval()
    sight = look(m, TOKENIZER, "abc abc")
    batch = Batch(index=torch.zeros(1), tokens=torch.tensor([sight.tokens]))
    taps = m.run(batch, taps=True).taps
    data = describe(sight, [False] * len(sight.tokens), Findings())
    assert len(data["maps"]) == 2
    for one in data["maps"]:
        values = np.frombuffer(base64.b64decode(one["data"]), np.float32).reshape(one["shape"])
        np.testing.assert_array_equal(values, taps[f"{one['path']}.weights"][0].detach().numpy())
        np.testing.assert_allclose(values.sum(-1), 1, rtol=1e-5)


def test_a_decoder_looks_at_itself_and_at_its_source():
    sight = look(model("vanilla"), TOKENIZER, "abcdef", "xyz")
    kinds = {one.path: (one.side, one.keys) for one in sight.maps}
    assert kinds["encoder.0.0"] == ("source", "same")
    assert kinds["decoder.0.0"] == ("tokens", "same")
    assert kinds["decoder.0.1"] == ("tokens", "source")
    assert sight.labels[0] == "<bos>"
    assert sight.source_labels[0] == "a"


def test_an_encoder_decoder_without_a_target_reads_what_it_writes():
    sight = look(model("vanilla"), TOKENIZER, "abc")
    assert sight.tokens[0] == TOKENIZER.bos
    assert len(sight.source) == 4


@pytest.mark.parametrize(
    ("name", "tap"),
    [
        ("performer", "approximation_error"),
        ("adaptive-span", "span"),
        ("universal-act", "steps"),
        ("reformer-lsh", "buckets"),
        ("switch", "experts"),
        ("transparent", "layers"),
    ],
)
def test_what_is_special_to_a_relative_is_reported(name, tap):
    m = model(name)
    sight = look(m, TOKENIZER, "so it is", "it" if m.spec.topology == "encoder-decoder" else None)
    found = [special for special in sight.specials if special.name == tap]
    assert found
    assert all(special.value.float().isfinite().all() for special in found)


def test_texts_that_cannot_be_looked_at_are_refused():
    with pytest.raises(DataError, match="no text"):
        look(model("gpt2"), TOKENIZER, "")
    with pytest.raises(DataError, match="one text"):
        look(model("gpt2"), TOKENIZER, "a", "b")


def test_long_texts_are_cut_to_what_the_model_takes():
    assert len(look(model("gpt2"), TOKENIZER, "x" * 500).tokens) == 64


def test_nothing_of_a_text_becomes_markup():
    sight = see(model("gpt2"), TOKENIZER, TOKENIZER.encode("</script><b>"))
    page = render("<b>&", describe(sight, [False] * len(sight.tokens), Findings()))
    assert len(re.findall("</script>", page)) == 2
    assert "<title>&lt;b&gt;&amp;</title>" in page
