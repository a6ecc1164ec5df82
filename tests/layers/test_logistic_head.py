import pytest
import torch

from kinfolk.core.batch import IGNORE
from kinfolk.core.errors import SpecError
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.heads.logistic_head import LogisticMixture
from kinfolk.layers.init import Xavier, seeded
from kinfolk.layers.module import Dims
from tests.exact import assert_exact

DIMS = Dims(d_model=12, vocab_size=40, max_len=8, dropout=0.0, n_sublayers=2)


def head(**numbers):
    spec = LogisticMixture(**numbers)
    module = spec.build(DIMS, Tokens().build(DIMS))
    seeded(Xavier(), module, DIMS, 0)
    assert sum(p.numel() for p in module.parameters()) == spec.cost(DIMS).params
    return module.double()


def test_values_have_all_the_probability_and_specials_none():
    module, x = (
        head(n_components=3),
        3 * torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    )
    log_p = module.logits(x)
    assert log_p.shape == (2, 5, 40)
    assert_exact(log_p.exp().sum(-1), torch.ones(2, 5, dtype=torch.float64))
    assert (log_p[..., :7].exp() < 1e-29).all()
    assert log_p.isfinite().all()


def test_the_loss_is_that_of_the_log_probabilities():
    module, x = head(), torch.randn(2, 5, 12, dtype=torch.float64)
    targets = torch.randint(7, 40, (2, 5))
    targets[0, 1], targets[1, 3] = IGNORE, 2
    log_p = module.logits(x)
    want = -log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0].where(targets != IGNORE, 0.0)
    assert_exact(module.losses(x, targets), want)
    assert_exact(module.loss(x, targets), want.sum())
    # a target that is no value costs much, and is no error
    assert want[1, 3] == 70


def test_neighbours_learn_from_each_other():
    """Ten steps towards one value make its neighbour likelier, and a far one less so."""
    module, x = head(), torch.ones(1, 1, 12, dtype=torch.float64)
    before = module.logits(x)[0, 0].detach()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.02)
    for _ in range(10):
        optimiser.zero_grad()
        module.loss(x, torch.tensor([[20]])).backward()
        optimiser.step()
    change = module.logits(x)[0, 0].detach() - before
    assert change[21] > 0
    assert change[19] > 0
    assert change[39] < 0


def test_what_is_no_mixture_is_refused():
    with pytest.raises(SpecError, match="n_components: 0 is not allowed; at least 1"):
        LogisticMixture(n_components=0)
    with pytest.raises(SpecError, match="leaves no two values after the first 39 ids"):
        LogisticMixture(first=39).build(DIMS, Tokens().build(DIMS))
