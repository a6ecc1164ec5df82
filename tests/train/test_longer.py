"""A longer segment memory at evaluation: the same weights, further back."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.train.longer import with_memory

SMALL = {"size": "tiny", "n_layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 16, "vocab_size": 30}


def reach(model, n_segments, segment):
    """Return how many positions before the last segment its states depend on."""
    tokens = torch.arange(n_segments * segment).remainder(30)[None]

    def last(row):
        memory = model.new_memory()
        for at in range(0, row.shape[1], segment):
            hidden = model.run(Batch(index=torch.zeros(1), tokens=row[:, at : at + segment]), memory).hidden
            memory.settle()
        return hidden

    with torch.no_grad():
        before, first = last(tokens), (n_segments - 1) * segment
        for back in range(first, 0, -1):
            changed = tokens.clone()
            changed[0, first - back] = (changed[0, first - back] + 7) % 30
            if not torch.equal(last(changed), before):
                return back
    return 0


@pytest.mark.parametrize("name", ["transformer-xl", "gtrxl"])
def test_it_sees_as_far_back_as_asked(name):
    torch.manual_seed(0)
    model = kf.build(kf.relative(name, segment=4, memory=4, **SMALL)).double().eval()
    for memory in (0, 4, 6, 12):
        longer = with_memory(model, memory)
        assert reach(longer, 5, 4) == memory
        assert longer.state_dict().keys() == model.state_dict().keys()
    assert reach(model, 5, 4) == 4


def test_what_has_no_memory_is_refused():
    with pytest.raises(SpecError, match="no layer of this model carries a memory"):
        with_memory(kf.build(kf.relative("gpt2", **SMALL)), 8)


def test_the_norm_of_a_remembered_state_is_the_same_before_and_after():
    """GTrXL normalises [memory, segment] together (Parisotto et al. 2019, section 3.1); here states are remembered
    normalised. A norm treats positions alone, so with fixed weights that is the same function: reading in segments
    equals reading at once."""
    model = kf.build(kf.relative("gtrxl", segment=4, memory=4, **SMALL)).double().eval()
    tokens = torch.randint(0, 30, (2, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model.run(Batch(index=torch.zeros(2), tokens=tokens)).hidden
        memory, parts = model.new_memory(), []
        for at in range(0, 16, 4):
            parts.append(model.run(Batch(index=torch.zeros(2), tokens=tokens[:, at : at + 4]), memory).hidden)
            memory.settle()
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-12)
