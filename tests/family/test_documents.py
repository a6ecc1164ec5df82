import pytest
import torch

import kinfolk as kf
from kinfolk.layers.feed_forwards.experts import Experts
from kinfolk.models.cost import cost

TOY = {"d_model": 16, "n_heads": 2, "d_ff": 32, "vocab_size": 40, "max_len": 64}


@pytest.mark.parametrize("n_layers", [1, 2, 3, 5])
def test_one_feed_forward_in_the_middle_has_experts(n_layers):
    blocks = kf.relative("t-dmca", size="base", n_layers=n_layers, n_experts=4, **TOY).model.decoder.blocks
    at = [n for n, block in enumerate(blocks) if any(isinstance(part, Experts) for part in block.parts)]
    assert at == [n_layers // 2]


def test_without_an_encoder_about_half_of_the_parameters_are_left():
    both, alone = (kf.relative(name, size="base").model for name in ("vanilla", "transformer-d"))
    tables = both.vocab_size * both.d_model
    left = (cost(alone, 64).params - tables) / (cost(both, 64).params - tables)
    # an encoder's layer has two parts of the five, and cross-attention is gone too
    assert 0.40 < left < 0.45


def test_the_target_is_predicted_from_the_joined_source():
    from kinfolk.core.batch import Batch
    from kinfolk.core.rng import Rng
    from kinfolk.objectives.learner import Learner
    from kinfolk.objectives.objective import Vocabulary

    recipe = kf.relative("transformer-d", size="base", n_layers=1, **TOY)
    learner = Learner(kf.build(recipe), recipe.objective, Vocabulary(size=40))
    source, tokens = torch.randint(7, 40, (2, 6)), torch.randint(7, 40, (2, 5))
    batch = Batch(index=torch.arange(2), tokens=tokens, source=source)
    prepared = learner.prepare(batch, Rng(0))
    assert prepared.source is None
    assert torch.equal(prepared.tokens[:, :6], source)
    assert int((prepared.targets >= 0).sum()) == learner(prepared).count
    assert "target-token" in learner.measure(prepared)
