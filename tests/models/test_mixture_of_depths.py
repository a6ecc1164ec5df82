"""Mixture of depths: against the definition, sequence by sequence, in training and with the causal rule."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.models.depth.mixture_of_depths import MixtureOfDepths
from kinfolk.ops.naive.mixture_of_depths import mixture_of_depths
from tests.layers.test_latent_attention import assert_same, normal

TOY = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 12, "vocab_size": 20, "max_len": 32}


def routed(capacity=0.25):
    model = kf.build(kf.relative("mixture-of-depths", capacity=capacity, **TOY)).double()
    for n, p in enumerate(model.parameters()):
        p.data = p.data + 0.3 * normal(*p.shape, seed=n)
    return model, model.decoder.blocks[1]


@pytest.mark.parametrize("training", [True, False])
def test_a_routed_block_equals_naive(training):
    _, block = routed()
    block.train(training)
    x = normal(2, 11, 8).requires_grad_()
    scores = block.router(x).squeeze(-1)

    def inside(y, positions):
        return block.block(y[None], Context(pos_BL=torch.tensor([positions])), None)[0]

    n = 3 if training else None
    want = torch.stack([mixture_of_depths(x[b], scores[b], n, inside) for b in range(2)])
    assert_same(block(x, Context(), None), want, [x, *block.parameters()])


def test_training_chooses_by_the_whole_sequence_and_decoding_by_the_position_alone():
    model, _ = routed()
    tokens = torch.randint(7, 20, (2, 16), generator=torch.Generator().manual_seed(0))
    batch = Batch(index=torch.arange(2), tokens=tokens)
    (chosen,) = (x for name, x in model.train().run(batch, taps=["chosen"]).taps.items() if "chosen" in name)
    assert chosen.sum(1).tolist() == [4, 4]
    changed = batch.replace(tokens=torch.cat([tokens[:, :15], tokens[:, :1]], 1))
    before, after = (model.eval().run(b, taps=["chosen"]).taps for b in (batch, changed))
    for name, x in before.items():
        assert torch.equal(x[:, :15], after[name][:, :15])


def test_the_auxiliary_loss_teaches_the_threshold():
    model, block = routed()
    tokens = torch.randint(7, 20, (4, 16), generator=torch.Generator().manual_seed(0))
    out = model.train().run(Batch(index=torch.arange(4), tokens=tokens), taps=["chosen"])
    assert out.side_losses["routing"].item() > 0
    out.side_losses["routing"].backward()
    assert block.router.weight.grad.abs().sum() > 0


def test_capacity_of_one_runs_everything_and_costs_less_below():
    whole, half = (kf.relative("mixture-of-depths", capacity=c, **TOY) for c in (1.0, 0.5))
    from kinfolk.models.cost import cost

    assert cost(half.model, 32).flops_per_token < cost(whole.model, 32).flops_per_token
    assert MixtureOfDepths(capacity=0.125).n_chosen(4) == 1


def test_what_is_refused():
    mistral = kf.relative("mistral", **TOY)
    with pytest.raises(SpecError, match="needs blocks of causal 'attention'"):
        mistral.model.decoder.wrap(MixtureOfDepths())
