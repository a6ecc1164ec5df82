"""Environments: the rules of the one that ships, and what is said of others."""

import dataclasses
import importlib.util
import sys

import numpy as np
import pytest
import torch

from kinfolk.contests.acting.environment import _described, open_world
from kinfolk.contests.acting.players import Players
from kinfolk.contests.acting.recall import CueRecall, Discrete
from kinfolk.core.errors import DataError, MissingExtraError, SpecError

needs_gymnasium = pytest.mark.skipif(importlib.util.find_spec("gymnasium") is None, reason="needs kinfolk[rl]")


def play(env, seed, choose):
    """Return what was seen and the rewards of an episode."""
    seen, rewards, over = [env.reset(seed=seed)[0]], [], False
    while not over:
        observation, reward, over, cut, _ = env.step(choose(seen))
        assert not cut
        seen.append(observation)
        rewards.append(reward)
    return seen, rewards


@pytest.mark.parametrize(("corridor", "cues", "distractors"), [(0, 2, 1), (1, 3, 2), (7, 4, 5)])
def test_a_cue_a_corridor_and_a_junction(corridor, cues, distractors):
    env = CueRecall(corridor, cues, distractors)
    found = set()
    for seed in range(40):
        seen, rewards = play(env, seed, lambda seen: seen[0])
        assert len(rewards) == corridor + 2
        assert rewards == [0.0] * (corridor + 1) + [1.0], "only the choice at the junction is rewarded"
        assert 0 <= seen[0] < cues
        assert all(cues <= x < cues + distractors for x in seen[1 : corridor + 1])
        assert seen[corridor + 1] == cues + distractors == env.observation_space.n - 1
        found.add(seen[0])
    assert found == set(range(cues))


def test_the_wrong_turn_brings_nothing_and_the_way_does_not_matter():
    env = CueRecall(3, 2)
    assert sum(play(env, 5, lambda seen: 1 - seen[0])[1]) == 0.0
    # a detour on the way, the right turn at the end
    right = play(env, 5, lambda seen: seen[0] if len(seen) == 5 else 1 - seen[0])[1]
    assert sum(right) == 1.0


def test_an_episode_follows_from_its_seed():
    one, two = (play(CueRecall(12), 3, lambda seen: 0)[0] for _ in range(2))
    assert one == two
    assert any(play(CueRecall(12), seed, lambda seen: 0)[0] != one for seed in range(5))
    env = CueRecall(12)
    env.reset(seed=3)
    assert env.reset()[0] in (0, 1), "without a seed it goes on with the last one's"


def test_the_environment_refuses_what_makes_no_sense():
    with pytest.raises(SpecError, match="cues must be at least 2, got 1"):
        CueRecall(cues=1)
    env = CueRecall(0)
    env.reset(seed=0)
    with pytest.raises(SpecError, match="no action 2; use 0 to 1"):
        env.step(2)
    env.step(0)
    env.step(0)
    with pytest.raises(SpecError, match="over"):
        env.step(0)


def test_a_world_by_name():
    world = open_world("cue-recall:corridor=5,cues=3,distractors=2")
    assert (world.n_tokens, world.n_features, world.n_actions, world.threshold) == (6, 0, 3, 0.95)
    assert world.encode([1, 5]).tolist() == [1, 5]
    with pytest.raises(DataError, match="unknown setting 'coridor'; did you mean 'corridor'"):
        open_world("cue-recall:coridor=5")


def test_without_the_extra_only_our_own_are_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert open_world("cue-recall").n_actions == 2
    with pytest.raises(
        MissingExtraError, match=r"'CartPole-v1' is none of .*\(cue-recall\).*pip install 'kinfolk\[rl\]'"
    ):
        open_world("CartPole-v1")


@needs_gymnasium
def test_gymnasium_by_id():
    world = open_world("CartPole-v1")
    assert (world.n_tokens, world.n_features, world.n_actions, world.threshold) == (0, 4, 2, 475.0)
    env = world.make()
    seen = world.encode([env.reset(seed=0)[0], env.reset(seed=1)[0]])
    assert seen.shape == (2, 4)
    assert seen.dtype == torch.float32
    assert open_world("FrozenLake-v1").n_tokens == 16
    # a tuple of three numbers, flattened by Gymnasium
    assert open_world("Blackjack-v1").n_features == 32 + 11 + 2


@needs_gymnasium
def test_unknown_names_and_actions_are_refused():
    with pytest.raises(SpecError, match="unknown environment 'cue-recal'; did you mean 'cue-recall'"):
        open_world("cue-recal")
    with pytest.raises(SpecError, match=r"unknown environment 'CartPole-v7'; did you mean 'CartPole-v"):
        open_world("CartPole-v7")


def test_actions_that_are_neither_a_choice_nor_numbers_are_refused():
    class Odd(Shifted):
        def __init__(self):
            super().__init__(action_space="MultiDiscrete([2 3])")

    with pytest.raises(SpecError, match=r"odd: actions are MultiDiscrete\(\[2 3\]\); a choice \(Discrete\) or numbers"):
        _described("odd", Odd)


@needs_gymnasium
def test_actions_may_be_numbers_between_bounds():
    world = open_world("Pendulum-v1")
    assert (world.n_actions, world.n_features) == (1, 3)
    # from -1 to 1 is stretched to the bounds, -2 and 2; what lies beyond is cut
    assert [world.decode([x]).tolist() for x in (-1.0, 0.25, 7.0)] == [[-2.0], [0.5], [2.0]]
    free = dataclasses.replace(world, bounds=(np.float32([-np.inf, 0]), np.float32([np.inf, 4])), n_actions=2)
    assert free.decode([7.0, -0.5]).tolist() == [7.0, 1.0]


@dataclasses.dataclass
class Shifted:
    """Observations and actions that do not count from 0."""

    observation_space: Discrete = dataclasses.field(default_factory=lambda: Discrete(3, start=5))
    action_space: Discrete = dataclasses.field(default_factory=lambda: Discrete(2, start=10))
    heard: list = dataclasses.field(default_factory=list)

    def reset(self, *, seed=None, options=None):
        return 6, {}

    def step(self, action):
        self.heard.append(action)
        return 7, np.float64(0.5), False, len(self.heard) == 2, {}


def test_spaces_may_begin_anywhere():
    players = Players(_described("shifted", Shifted), 1, seed=0)
    assert players.observations.tolist() == [1]
    step = players.step(torch.tensor([1]))
    assert players.envs[0].heard == [11]
    assert step.rewards_B.tolist() == [0.5]
    assert players.observations.tolist() == [2]


def test_a_cut_is_told_from_an_end():
    players = Players(_described("shifted", Shifted), 1, seed=0)
    players.step(torch.tensor([0]))
    step = players.step(torch.tensor([0]))
    assert (step.ends_B.tolist(), step.cut_B.tolist(), step.final.tolist()) == ([True], [True], [2])
    over = Players(open_world("cue-recall:corridor=0"), 1, seed=0)
    over.step(torch.tensor([0]))
    step = over.step(torch.tensor([0]))
    assert (step.ends_B.tolist(), step.cut_B.tolist()) == ([True], [False])


GYMNASIUM = [pytest.param(name, marks=needs_gymnasium) for name in ("CartPole-v1", "Pendulum-v1")]


@pytest.mark.parametrize("env", ["cue-recall:corridor=3", *GYMNASIUM])
def test_players_are_taken_up_where_they_were(env):
    world, draw = open_world(env), torch.Generator().manual_seed(0)
    one, two = Players(world, 3, seed=4), Players(world, 3, seed=4)

    def some():
        return torch.randint(2, (3,), generator=draw) if world.bounds is None else torch.randn(3, 1, generator=draw)

    for _ in range(8):
        one.step(some())
    two.restore(one.tensors())
    for _ in range(30):
        assert torch.equal(one.observations, two.observations)
        assert torch.equal(one.began, two.began)
        actions = some()
        a, b = one.step(actions), two.step(actions)
        assert torch.equal(a.rewards_B, b.rewards_B)
        assert torch.equal(a.ends_B, b.ends_B)
    assert one.episodes == two.episodes
    assert (max(one.episodes) > 0) == (env != "Pendulum-v1")


def test_rows_and_seeds_have_episodes_of_their_own():
    world = open_world("cue-recall:corridor=20")

    def way(seed, row):
        players = Players(world, 2, seed=seed)
        return [players.step(torch.zeros(2, dtype=torch.long)).final[row].item() for _ in range(20)]

    assert way(0, 0) == way(0, 0)
    assert way(0, 0) != way(0, 1)
    assert way(0, 0) != way(1, 0)
