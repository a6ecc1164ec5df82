"""Rollouts: what is learnt from is what was acted with, from segment to segment and over the ends of episodes."""

import copy

import pytest
import torch

from kinfolk.contests.acting.actor import Actor
from kinfolk.contests.acting.environment import _described
from kinfolk.contests.acting.players import Players
from kinfolk.contests.acting.recall import Discrete
from kinfolk.contests.acting.rollouts import Rollouts
from kinfolk.contests.acting.run import make_job
from kinfolk.core.errors import SpecError, TrainingError
from kinfolk.objectives.policy import Policy, Rollout
from kinfolk.ops.naive.gae import advantages
from kinfolk.train.evaluate import scoring
from kinfolk.train.memory import Memories
from kinfolk.train.parallel import Team
from tests.contests.acting.toy import toy

ACTORS = ["gtrxl", "trxl-i", "transformer-xl", "lstm", "gru", "gpt2"]


def opened(name="gtrxl", seed=0, **changes):
    recipe, world = toy(name, **changes)
    job = make_job(recipe, world, seed)
    job.learner.double()
    # weights of some size, so that memory shows in what is done
    with torch.no_grad():
        for p in job.learner.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())), alpha=0.3)
    return job, Memories(job.learner, 1, job.batches)


def recomputed(job, memories, batch):
    """Return log-probabilities and values as a training pass sees them."""
    memory = memories.before(0, batch)
    out = job.learner.model.run(batch, *(m.state for m in memory))
    return out.head.log_probs(out.head.logits(out.hidden), batch.targets), out.head.value(out.hidden)


def test_actions_that_are_numbers_are_as_likely_in_training():
    pytest.importorskip("gymnasium")
    job, memories = opened("gtrxl", env="Pendulum-v1", **{"objective.epochs": 1})
    for number in range(3):
        batch = job.batches.at(number)
        assert batch.targets.shape == (5, 6, 1)
        log_probs, _ = recomputed(job, memories, batch)
        torch.testing.assert_close(log_probs, batch.annotation(Rollout).log_probs.double(), rtol=1e-4, atol=1e-4)
        memories.settle()


@pytest.mark.parametrize("name", ACTORS)
def test_training_sees_the_log_probabilities_that_were_acted_with(name):
    """Over six rollouts whose episodes begin and end everywhere, with a memory that moves on from one to the next."""
    job, memories = opened(name, **{"objective.epochs": 1})
    for number in range(6):
        batch = job.batches.at(number)
        log_probs, values = recomputed(job, memories, batch)
        torch.testing.assert_close(log_probs, batch.annotation(Rollout).log_probs.double(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(values, batch.annotation(Rollout).values.double(), rtol=1e-5, atol=1e-5)
        job.learner.at_step(number + 1)
        memories.settle()
    assert bool((batch.document != 0).any())
    assert job.batches.players.episodes[0] >= 5


@pytest.mark.parametrize("name", ["gtrxl", "lstm"])
def test_the_memory_of_the_last_rollout_counts(name):
    job, memories = opened(name, **{"objective.epochs": 1})
    for number in range(2):
        batch = job.batches.at(number)
        log_probs, _ = recomputed(job, memories, batch)
        memories.settle()
    without = job.learner.model.run(batch, job.learner.new_memory().state)
    logits = without.head.logits(without.hidden)
    forgetful = logits.log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]
    goes_on = batch.document == 0
    assert bool(goes_on.any())
    assert not torch.allclose(forgetful[goes_on], log_probs[goes_on], atol=1e-4)
    # what began in this rollout owes nothing to the one before
    torch.testing.assert_close(forgetful[~goes_on], log_probs[~goes_on], rtol=1e-9, atol=1e-9)


def test_every_epoch_reads_the_memory_that_the_rollout_began_with():
    # four steps where the pattern counts segments of six: a position that is off by one rollout is seen
    job, memories = opened(env="cue-recall:corridor=9", **{"training.length": 4})
    for number in range(6):
        found, counted = [], []
        for epoch in range(3):
            batch, made = job.read(1 + 3 * number + epoch, Team())
            job.learner.at_step(1 + 3 * number + epoch)
            found.append(recomputed(job, memories, batch)[0])
            counted.append(made)
            memories.settle()
        # no update between them: the same numbers; and steps are counted when they are made
        assert counted == [20, 0, 0]
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
        torch.testing.assert_close(found[0], batch.annotation(Rollout).log_probs.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gtrxl", "transformer-xl", "lstm"])
def test_acting_is_decoding(name):
    """Within one episode, an actor sees what the state of decoding sees."""
    recipe, world = toy(name, "cue-recall:corridor=15")
    model = make_job(recipe, world, 3).learner.model.double().eval()
    tokens = torch.randint(world.n_tokens, (4, 17), generator=torch.Generator().manual_seed(1))
    actor, state = Actor(model, 6, model.new_memory()), model.new_state(4, 32)
    began = torch.ones(4, dtype=torch.bool)
    with torch.no_grad():
        for t in range(17):
            logits, _ = actor.look(tokens[:, t], began if t == 0 else ~began)
            want = model(tokens[:, t : t + 1], state=state).logits[:, -1]
            torch.testing.assert_close(logits, want, rtol=1e-9, atol=1e-9)


def test_a_peek_leaves_no_trace():
    recipe, world = toy()
    model = make_job(recipe, world, 0).learner.model.double().eval()
    one, two = (Actor(model, 6, model.new_memory()) for _ in range(2))
    seen = torch.randint(world.n_tokens, (25, 2), generator=torch.Generator().manual_seed(2))
    new = torch.zeros(2, dtype=torch.bool)
    with torch.no_grad():
        for t in range(24):
            a, value = one.look(seen[t], new)
            one.peek(seen[t + 1] * 0, new)
            b, _ = two.look(seen[t], new)
            assert torch.equal(a, b)
        assert value.shape == (2,)
        peeked = one.peek(seen[24], new)
        assert torch.equal(peeked, one.look(seen[24], new)[1])


def test_an_episode_sees_nothing_of_the_one_before():
    recipe, world = toy()
    model = make_job(recipe, world, 0).learner.model.double().eval()
    old, fresh = (Actor(model, 6, model.new_memory()) for _ in range(2))
    began = torch.ones(2, dtype=torch.bool)
    with torch.no_grad():
        for t in range(5):
            old.look(torch.tensor([t % 3, 1]), began if t == 0 else ~began)
        for t in range(4):
            a = old.look(torch.tensor([t, 2]), began if t == 0 else ~began)[0]
            b = fresh.look(torch.tensor([t, 2]), began if t == 0 else ~began)[0]
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_advantages_are_those_of_the_rewards_that_came():
    job, _ = opened(**{"objective.epochs": 1})
    source: Rollouts = job.batches
    before = copy.deepcopy(source.players)
    batch = source.at(0)
    rewards, ends = [], []
    for t in range(6):
        step = before.step(batch.targets[:, t])
        rewards.append(step.rewards_B)
        ends.append(step.ends_B)
    rewards, ends = torch.stack(rewards, 1), torch.stack(ends, 1)
    assert bool(ends.any())
    # the rollout does not say what comes after it; where rows end with an episode that does not matter
    raw = batch.annotation(Rollout).returns - batch.annotation(Rollout).values
    want = advantages(
        rewards.double(), batch.annotation(Rollout).values.double(), torch.zeros(5).double(), ends, 0.99, 0.95
    )
    closed = ends.flip(1).cumsum(1).flip(1) > 0
    torch.testing.assert_close(raw[closed].double(), want[closed], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(batch.annotation(Rollout).advantages.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(batch.annotation(Rollout).advantages.std(), torch.tensor(1.0), atol=1e-4, rtol=0)


class Endless:
    """Pays 1 for every step and is cut off after three."""

    observation_space, action_space = Discrete(4), Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return 0, {}

    def step(self, action):
        self.at += 1
        return self.at, 1.0, False, self.at == 3, {}


def test_what_was_cut_off_would_have_gone_on():
    """The value of what was last seen is added to the last reward, as the critic sees it in that episode."""
    world = _described("endless", Endless)
    job, _ = opened("lstm", env=world, **{"objective.epochs": 1, "objective.decay": 0.0})
    batch = job.batches.at(0)
    model = job.learner.model.eval()
    with torch.no_grad():
        whole = model(torch.tensor([[0, 1, 2, 3]]))
        value = whole.head.value(whole.hidden)[0]
    raw = (batch.annotation(Rollout).returns)[0].double()
    torch.testing.assert_close(raw[:3], 1 + 0.99 * value[1:], rtol=1e-5, atol=1e-5)


def test_rollouts_come_in_order():
    job, _ = opened()
    job.batches.at(0)
    with pytest.raises(TrainingError, match="rollout 2 cannot be made after rollout 0"):
        job.batches.at(6)


def test_acting_leaves_the_learner_as_it_was():
    job, _ = opened()
    job.learner.train()
    with scoring(job.learner):
        assert not job.learner.training
        assert not torch.is_grad_enabled()
    assert job.learner.training


def test_players_begin_where_the_seed_says():
    recipe, world = toy()
    one, two, other = (make_job(recipe, world, seed).batches for seed in (0, 0, 1))
    a, b, c = (source.at(0) for source in (one, two, other))
    assert torch.equal(a.tokens, b.tokens)
    assert torch.equal(a.targets, b.targets)
    assert not torch.equal(a.tokens, c.tokens)
    assert Players(world, 5, 0).observations.tolist() == a.tokens[:, 0].tolist()


def test_every_rollout_draws_anew():
    """An undecided actor does what its draws say, and those are not the same again and again."""
    recipe, world = toy("lstm", **{"objective.epochs": 1})
    source = make_job(recipe, world, 0).batches
    one, two = source.at(0).targets, source.at(1).targets
    assert one.unique().tolist() == [0, 1, 2]
    assert not torch.equal(one, two)


def test_jobs_that_cannot_be_are_refused():
    recipe, world = toy()
    with pytest.raises(SpecError, match=r"training.accumulate: .* use 1 instead of 5"):
        make_job(recipe.replace(training=recipe.training.replace(accumulate=5)), world, 0)
    with pytest.raises(SpecError, match="precision: policies are trained in fp32"):
        make_job(recipe.replace(training=recipe.training.replace(precision="bf16")), world, 0)


def test_the_batch_is_one():
    job, _ = opened()
    batch = job.batches.at(0)
    assert len(batch.annotation(Rollout).log_probs) == len(batch)
    assert len(batch.rows(slice(0, 2)).annotation(Rollout).log_probs) == 2
    assert isinstance(job.learner.objective, Policy)
