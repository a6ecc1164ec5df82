"""Generalised advantages: against the sum that defines them, and where they are known."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.ops import gae as advantage
from kinfolk.ops.naive import gae as naive


def drawn(batch, length, seed):
    g = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(batch, length, generator=g, dtype=torch.float64) for _ in range(2))
    ends = torch.rand(batch, length, generator=g) < 0.25
    return rewards, values, torch.randn(batch, generator=g, dtype=torch.float64), ends


@given(
    batch=st.integers(1, 3),
    length=st.sampled_from([1, 2, 7, 13]),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    decay=st.sampled_from([0.0, 0.95, 1.0]),
    seed=st.integers(0, 99),
)
def test_advantages_are_discounted_sums_of_surprises(batch, length, gamma, decay, seed):
    given = drawn(batch, length, seed)
    got, want = (f.advantages(*given, gamma, decay) for f in (advantage, naive))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_values_trust_the_critic_at_0_and_the_rewards_at_1():
    rewards, values, last, ends = drawn(2, 5, 3)
    ends[:] = False
    one_step = advantage.advantages(rewards, values, last, ends, 0.9, 0.0)
    torch.testing.assert_close(one_step[:, -1], rewards[:, -1] + 0.9 * last - values[:, -1])
    whole = advantage.advantages(rewards, values, last, ends, 0.9, 1.0)
    earned = sum(0.9**t * rewards[:, t] for t in range(5)) + 0.9**5 * last
    torch.testing.assert_close(whole[:, 0] + values[:, 0], earned)


def test_nothing_crosses_the_end_of_an_episode():
    rewards, values, last, ends = drawn(1, 6, 1)
    ends[0] = torch.tensor([False, False, True, False, False, True])
    before = advantage.advantages(rewards, values, last, ends, 0.99, 0.95)
    rewards[0, 3:], values[0, 3:], last = 7.0, -3.0, last + 5
    after = advantage.advantages(rewards, values, last, ends, 0.99, 0.95)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])
