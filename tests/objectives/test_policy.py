"""The objective of acting, against its three terms written out."""

import dataclasses

import pytest
import torch

from kinfolk.contests.acting.run import make_job
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.objectives.policy import Policy, Rollout
from kinfolk.ops.naive.ppo import entropy, surrogate
from tests.contests.acting.toy import toy


def rollout(batch):
    return batch.annotation(Rollout)


def changed(batch, **changes):
    return batch.annotate(dataclasses.replace(rollout(batch), **changes))


def setup():
    recipe, world = toy("lstm")
    job = make_job(recipe, world, 0)
    batch = job.batches.at(0)
    draw = torch.Generator().manual_seed(0)
    # as if some updates had passed since
    noise = {
        name: torch.randn(rollout(batch).log_probs.shape, generator=draw)
        for name in ("log_probs", "advantages", "returns")
    }
    batch = changed(batch, log_probs=rollout(batch).log_probs + 0.3 * noise.pop("log_probs"), **noise)
    return job.learner.double(), batch


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_the_loss_is_surrogate_values_and_entropy(scale):
    learner, batch = setup()
    batch = changed(batch, returns=rollout(batch).returns * scale)
    mean = float(rollout(batch).returns.sum()) / 30
    spread = max(1.0, sum((x - mean) ** 2 for x in rollout(batch).returns.flatten().tolist()) / 30)
    assert (spread > 1) == (scale > 1)
    out = learner.model.run(batch)
    logits, values = out.head.logits(out.hidden), out.head.value(out.hidden)
    now = torch.stack([row[torch.arange(6), a] for row, a in zip(logits.log_softmax(-1), batch.targets, strict=True)])
    objective = Policy(clip=0.1, value_weight=0.7, entropy_weight=0.03)
    loss = objective.loss(out, batch)
    want = surrogate(now, rollout(batch).log_probs.double(), rollout(batch).advantages.double(), 0.1).sum()
    want = (
        want
        + 0.7 * 0.5 * ((values - rollout(batch).returns) ** 2).sum() / spread
        - 0.03 * entropy(logits.detach()).sum()
    )
    assert float(loss.total.detach()) == pytest.approx(float(want.detach()), rel=1e-6)
    assert float(loss.count) == batch.targets.numel() == 30
    assert float(loss.side) == 0.0


def test_a_good_action_becomes_likelier():
    learner, batch = setup()
    batch = changed(batch, advantages=torch.ones_like(rollout(batch).advantages))
    objective = Policy(value_weight=0.0, entropy_weight=0.0, clip=0.9)
    optimiser = torch.optim.SGD(learner.parameters(), lr=1e-3)

    def likely():
        out = learner.model.run(batch)
        log_probs = out.head.logits(out.hidden).log_softmax(-1)
        return float(log_probs.gather(-1, batch.targets[..., None]).sum().detach())

    before = likely()
    objective.loss(learner.model.run(batch), batch).total.backward()
    optimiser.step()
    assert likely() > before


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"gamma": 1.5}, "gamma: 1.5 is not allowed; at least 0 and at most 1"),
        ({"epochs": 0}, "epochs: 0 is not allowed; at least 1"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_numbers_that_make_no_sense(numbers, said):
    with pytest.raises(SpecError, match=said):
        Policy(**numbers)


def test_texts_are_not_acted_out():
    learner, batch = setup()
    text = Batch(index=batch.index, tokens=batch.tokens, targets=batch.targets)
    with pytest.raises(SpecError, match="learns from rollouts with a policy head"):
        learner.objective.loss(learner.model.run(text), text)
    assert batch.annotation(Rollout) is not None
