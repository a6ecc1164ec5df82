"""The head that acts, and the embedding of what is measured."""

import pytest
import torch

from kinfolk.core.context import Context
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.embeddings.features import Features
from kinfolk.layers.heads.policy_head import GaussianHead, PolicyHead
from kinfolk.layers.init import Normal, seeded
from kinfolk.layers.module import Dims

DIMS = Dims(16, 5, 32, 0.0, 1)


def head(n=3, **numbers):
    spec = PolicyHead(n_actions=n, **numbers)
    module = spec.build(DIMS, Tokens().build(DIMS))
    seeded(Normal(), module, DIMS, 0)
    return spec, module


def test_it_says_how_likely_actions_are_and_what_a_state_is_worth():
    _, module = head()
    x = torch.randn(2, 4, 16)
    assert module.logits(x).shape == (2, 4, 3)
    assert module.value(x).shape == (2, 4)
    torch.testing.assert_close(module.value(x), x @ module.critic.weight[0])


def test_it_begins_undecided():
    """Rows of the actor are as short as `small` says, whatever the model's own way of drawing weights."""
    _, module = head()
    torch.testing.assert_close(module.actor.weight.norm(dim=1), torch.full((3,), 0.01))
    torch.testing.assert_close(module.critic.weight.norm(dim=1), torch.ones(1))
    probs = module.logits(torch.randn(8, 1, 16)).softmax(-1)
    assert bool(((probs - 1 / 3).abs() < 0.03).all())


def test_actions_are_drawn_as_likely_as_it_says():
    _, module = head()
    said = torch.tensor([0.0, 1.0, -1.0]).repeat(20_000, 1)
    drawn = module.draw_actions(said, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.bincount() / 20_000, said[0].softmax(-1), atol=0.01, rtol=0)
    assert module.likeliest(said[:2]).tolist() == [1, 1]
    assert module.log_probs(said[None, :3], drawn[None, :3]).exp()[0].tolist() == pytest.approx(
        said[0].softmax(-1)[drawn[:3]].tolist()
    )


def test_numbers_are_drawn_around_means():
    spec = GaussianHead(n_actions=2)
    module = spec.build(DIMS, Tokens().build(DIMS))
    seeded(Normal(), module, DIMS, 0)
    assert spec.cost(DIMS).params == sum(p.numel() for p in module.parameters())
    with torch.no_grad():
        module.log_stds.copy_(torch.tensor([0.5, -1.0]))
        said = torch.tensor([3.0, -2.0]).repeat(20_000, 1)
        drawn = module.draw_actions(said, torch.Generator().manual_seed(0))
        torch.testing.assert_close(drawn.mean(0), said[0], atol=0.05, rtol=0)
        torch.testing.assert_close(drawn.std(0), module.log_stds.exp(), atol=0.02, rtol=0)
        assert torch.equal(module.likeliest(said), said)
        # the mean surprise is the entropy
        surprise = -module.log_probs(said[None], drawn[None]).mean()
        torch.testing.assert_close(module.entropy(said[None])[0, 0], surprise, atol=0.02, rtol=0)


def test_its_cost_counts_its_parameters():
    spec, module = head(5)
    assert spec.cost(DIMS).params == sum(p.numel() for p in module.parameters())
    features = Features(n_features=7)
    assert features.cost(DIMS).params == sum(p.numel() for p in features.build(DIMS).parameters())


def test_measurements_are_mapped():
    module = Features(n_features=3).build(DIMS)
    x = torch.randn(2, 4, 3)
    torch.testing.assert_close(module(x, Context()), x @ module.map.weight.T + module.map.bias)


def test_refusals():
    with pytest.raises(SpecError, match="n_actions: 0 is not allowed; at least 1"):
        PolicyHead(n_actions=0)
    with pytest.raises(SpecError, match="n_features: 0 is not allowed; at least 1"):
        Features(n_features=0)
    module = Features(n_features=3).build(DIMS)
    with pytest.raises(ShapeError, match=r"\[batch, length, 3\], got shape \(2, 4, 5\)"):
        module(torch.zeros(2, 4, 5), Context())
    with pytest.raises(SpecError, match="no table"):
        _ = module.weight
