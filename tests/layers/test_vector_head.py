"""One vector for a text: what is pooled, what is refused."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.errors import SpecError
from kinfolk.layers.heads.vector_head import VectorHead
from kinfolk.models.cost import cost

NUMBERS = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "vocab_size": 40, "max_len": 32}


def encoder(**choices):
    return kf.build(kf.relative("bert", size="base", **NUMBERS, **{"model.head": VectorHead(**choices)})).eval()


@pytest.mark.parametrize("pool", ["first", "last", "mean", "max"])
def test_padding_has_no_part_in_a_vector(pool):
    model = encoder(pool=pool)
    tokens = torch.randint(40, (2, 9), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(9) < torch.tensor([[9], [4]])
    vectors = model(tokens, keep=keep).logits
    assert vectors.shape == (2, 16)
    states = model(tokens[1:, :4]).hidden[0]
    wanted = {"first": states[0], "last": states[-1], "mean": states.mean(0), "max": states.amax(0)}[pool]
    torch.testing.assert_close(vectors[1], wanted, rtol=0, atol=1e-6)


def test_a_pooler_is_a_layer_and_a_unit_vector_has_length_one():
    model = encoder(pool="first", activation="tanh", length="unit")
    out = model(torch.arange(6)[None])
    wanted = torch.tanh(model.head.map(out.hidden[:, 0]))
    torch.testing.assert_close(out.logits, wanted / wanted.norm())
    assert cost(model.spec, 8).params == model.n_params


def test_unknown_choices_and_losses_are_refused():
    for choice in ({"pool": "middle"}, {"activation": "step"}, {"length": "short"}):
        with pytest.raises(SpecError, match=next(iter(choice.values()))):
            VectorHead(**choice)
    with pytest.raises(SpecError, match="labels"):
        encoder().head.loss(torch.zeros(1, 2, 16), torch.zeros(1, 2, dtype=torch.long))
