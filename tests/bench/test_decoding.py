import pytest
import torch

from kinfolk.bench import decoding

SIZES = decoding.SIZES | {"d_model": 32, "d_ff": 32, "steps": 1}
WHO = {who.name: who for who in decoding.contests()[0].contestants}


def state_of(name, position):
    return decoding.prepare(WHO[name], SIZES | {"length": position}).step()


@pytest.mark.parametrize("name", ["gpt2", "performer", "lightweight-conv", "local", "vanilla"])
def test_states_grow_or_stay_as_promised(name):
    sizes = [state_of(name, position) for position in (512, 1024)]
    # keys and values of 2 layers, 4 bytes each, for the prompt and the tokens of two steps
    dense = [2 * 2 * 32 * 4 * (position + 2 * decoding.TOKENS) for position in (512, 1024)]
    # keys and values of the source, and what it was encoded to
    source = (2 * 2 + 1) * 32 * 4 * decoding.SOURCE
    if name == "gpt2":
        assert sizes == dense
    elif name == "vanilla":
        assert sizes == [size + source for size in dense]
    else:
        assert sizes[0] == sizes[1] < dense[0]


def test_tensors_that_share_memory_count_once():
    whole = torch.zeros(10)
    assert decoding.n_bytes([whole, whole[:5], {"a": (torch.zeros(3, dtype=torch.float64),)}]) == 40 + 24


def test_every_relative_that_decodes_takes_part():
    assert {"gpt2", "transformer-xl", "reformer-lsh", "dynamic-conv"} <= set(WHO)
    assert not {"bert", "bigbird"} & set(WHO)
