"""One update: averages over targets whatever the cut, clips, skips an overflow, and repeats itself."""

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from kinfolk.core.batch import Batch
from kinfolk.train.parallel import Team
from kinfolk.train.step import LossScale, StepOutcome, Stepper, tokens_of
from tests.train.toy import ToyBatches, ToyLearner, ToyModel, job, training


class Recorder(torch.optim.SGD):
    """An optimiser that keeps the gradients it was given."""

    def step(self, closure: object = None) -> None:
        self.seen = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        super().step()


def update(learner: nn.Module, batch: Batch, **changes: object) -> tuple[StepOutcome, list[torch.Tensor]]:
    optimiser = Recorder(learner.parameters(), lr=0.1)
    stepper = Stepper(learner, optimiser, training(**changes), seed=0, team=Team())
    return stepper.update(batch, 1, 10), getattr(optimiser, "seen", [])


def learner(dropout: float = 0.0) -> ToyLearner:
    torch.manual_seed(3)
    return ToyLearner(ToyModel(dropout)).double()


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_micro_batches_have_the_gradient_of_the_whole_batch(accumulate: int) -> None:
    """With unequal numbers of targets per micro-batch; a mean of means would fail."""
    batch = ToyBatches().at(0)
    assert len({int(batch.rows(slice(i, i + 2)).keep.sum()) for i in (0, 2, 4, 6)}) > 1
    whole, wanted = update(learner(), batch, clip=0.0)
    cut, found = update(learner(), batch, clip=0.0, accumulate=accumulate)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-14)
    assert (cut.loss, cut.count, cut.grad_norm) == pytest.approx((whole.loss, whole.count, whole.grad_norm), rel=1e-12)


def test_the_gradient_is_that_of_the_mean_plus_side() -> None:
    batch, model = ToyBatches().at(0), learner()
    loss = model(batch)
    (loss.total / loss.count + loss.side).backward()
    wanted = [p.grad for p in model.parameters()]
    outcome, found = update(learner(), batch, clip=0.0)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-14)
    assert outcome.loss == pytest.approx(float((loss.total / loss.count).detach()))


def test_clipping_is_by_the_global_norm() -> None:
    batch = ToyBatches().at(0)
    free, plain = update(learner(), batch, clip=0.0)
    limit = free.grad_norm / 3
    outcome, clipped = update(learner(), batch, clip=limit)
    assert outcome.grad_norm == pytest.approx(free.grad_norm)
    torch.testing.assert_close(clipped, [g / 3 for g in plain], rtol=1e-9, atol=1e-14)
    assert math.sqrt(sum(float(g.square().sum()) for g in clipped)) == pytest.approx(limit)
    _, unclipped = update(learner(), batch, clip=free.grad_norm * 2)
    torch.testing.assert_close(unclipped, plain, rtol=0, atol=0)


def test_dropout_depends_on_seed_step_process_and_micro_batch_only() -> None:
    batch = ToyBatches().at(0)

    def loss(seed: int = 0, step: int = 1, rank: int = 0, noise: int = 0) -> float:
        torch.manual_seed(noise)
        model = learner(dropout=0.5)
        stepper = Stepper(model, torch.optim.SGD(model.parameters()), training(), seed, Team(rank=rank))
        return stepper.update(batch, step, 10).loss

    assert loss(noise=1) == loss(noise=2)
    assert len({loss(), loss(seed=1), loss(step=2), loss(rank=1)}) == 4
    twice = dataclasses.replace(
        batch, **{f: torch.cat([getattr(batch, f)[:4]] * 2) for f in ("index", "tokens", "keep")}
    )
    model = learner(dropout=0.5)
    stepper = Stepper(model, torch.optim.SGD(model.parameters()), training(accumulate=2), 0, Team())
    first, second = stepper.update(twice, 1, 10).totals
    assert first != second


def test_the_learning_rate_follows_the_schedule() -> None:
    the_job = job()
    stepper = Stepper(the_job.learner, the_job.training.optimiser.build(the_job.learner), the_job.training, 0, Team())
    lrs = [stepper.update(ToyBatches().at(0), step, 12).lr for step in (1, 2, 3, 12)]
    wanted = [0.02 * the_job.training.schedule.scale(step, 12) for step in (1, 2, 3, 12)]
    assert lrs == pytest.approx(wanted)
    assert {group["lr"] for group in stepper.optimiser.param_groups} == {lrs[-1]}


def test_loss_scale_does_not_change_the_step() -> None:
    batch = ToyBatches().at(0)
    results = []
    for scale in (None, LossScale()):
        model = learner()
        optimiser = Recorder(model.parameters(), lr=0.1)
        outcome = Stepper(model, optimiser, training(), 0, Team(), scale=scale).update(batch, 1, 10)
        results.append((outcome.grad_norm, optimiser.seen))
    assert results[0][0] == pytest.approx(results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-10, atol=1e-14)


def test_an_overflow_is_skipped_and_halves_the_scale() -> None:
    model = learner().float()
    before = copy.deepcopy(model.state_dict())
    scale = LossScale(scale=3e38, patience=2)
    stepper = Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1), training(), 0, Team(), scale=scale)
    model.model.head.weight.register_hook(lambda grad: grad * 1e6)
    outcome = stepper.update(ToyBatches().at(0), 1, 10)
    assert outcome.skipped
    assert outcome.finite
    assert scale.scale == 1.5e38
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    scale.scale = 1.0
    for step in (2, 3):
        assert not stepper.update(ToyBatches().at(0), step, 10).skipped
    assert (scale.scale, scale.good) == (2.0, 0)
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_weights_stay_when_something_is_not_finite(what: str) -> None:
    model = learner()
    before = copy.deepcopy(model.state_dict())
    stepper = Stepper(model, torch.optim.SGD(model.parameters(), lr=0.1), training(), 0, Team())
    if what == "loss":
        model.model.norm.register_forward_hook(lambda module, inputs, output: output * math.nan)
    else:
        model.model.head.weight.register_hook(lambda grad: grad * math.inf)
    outcome = stepper.update(ToyBatches().at(0), 1, 10)
    assert not outcome.finite
    assert math.isfinite(outcome.loss) == (what == "gradient")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_batch_without_targets_does_no_harm() -> None:
    batch = ToyBatches().at(0)
    outcome, grads = update(learner(), batch.replace(keep=torch.zeros_like(batch.keep)))
    assert outcome.finite
    assert outcome.loss == 0
    assert all(bool((grad == 0).all()) for grad in grads)


def test_tokens_are_the_real_positions_a_model_reads() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.long)
    keep = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    batch = Batch(index=torch.arange(2), tokens=tokens)
    assert tokens_of(batch) == 8
    assert tokens_of(batch.replace(keep=keep)) == 6
    assert tokens_of(batch.replace(keep=keep, source=tokens, source_keep=keep)) == 14
