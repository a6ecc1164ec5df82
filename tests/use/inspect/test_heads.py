"""Planted heads are recognised; entropies and divergences are those of their definitions."""

import math

import pytest
import torch

from kinfolk.use.inspect.heads import distances, entropy, habits, places, rollout

N = 12


def planted():
    """Heads that look at the previous token, the next, themselves, a separator, the first, and everywhere."""
    previous, following = torch.eye(N).roll(-1, 1), torch.eye(N).roll(1, 1)
    previous = torch.eye(N).roll(1, 0)
    previous[0] = torch.eye(N)[0]
    following = torch.eye(N).roll(-1, 0)
    following[-1] = torch.eye(N)[-1]
    separator, first = torch.zeros(N, N), torch.zeros(N, N)
    separator[:, 7] = 1.0
    first[:, 0] = 1.0
    return torch.stack([previous, following, torch.eye(N), separator, first, torch.full((N, N), 1 / N)])


def special():
    marks = torch.zeros(N, dtype=torch.bool)
    marks[[0, 7]] = True
    return marks


def test_planted_heads_are_recognised():
    found = habits(planted(), special())
    assert [habit.name for habit in found] == ["previous", "next", "itself", "separators", "first", "broad"]
    assert found[0].previous == pytest.approx(1.0)
    assert found[1].next_ == pytest.approx(1.0)
    assert found[1].previous == pytest.approx(0.0)
    assert found[3].separators == pytest.approx(1.0)
    assert found[4].separators == pytest.approx(0.0)
    assert found[0].distance == pytest.approx((N - 1) / N)


def test_the_entropy_of_even_weights_is_the_logarithm_of_their_number():
    assert entropy(torch.full((3, N), 1 / N)).tolist() == pytest.approx([math.log(N)] * 3)
    assert float(entropy(torch.eye(N)).max()) < 0.002


def test_divergences_are_symmetric_zero_for_equals_and_at_most_a_bit_for_each_token():
    d = distances(planted())
    torch.testing.assert_close(d, d.T)
    torch.testing.assert_close(d.diagonal(), torch.zeros(6, dtype=torch.float64))
    assert float(d.max()) <= N * math.log(2)
    # previous and next agree nowhere but at two ends
    assert float(d[0, 1]) > 0.9 * (N - 2) * math.log(2)
    p, q = 0.999 * torch.eye(N).double() + 0.001 / N, torch.full((N, N), 1 / N).double()
    middle = (p + q) / 2
    by_hand = sum(
        0.5 * (p[i] * (p[i] / middle[i]).log()).sum() + 0.5 * (q[i] * (q[i] / middle[i]).log()).sum() for i in range(N)
    )
    assert float(d[2, 5]) == pytest.approx(float(by_hand), rel=1e-9)


def test_heads_that_look_alike_stand_together():
    twins = torch.cat([planted(), planted()])
    at = places(distances(twins))
    for i in range(6):
        assert abs(at[i] - at[i + 6]).max() < 1e-6
    assert abs(at[0] - at[1]).max() > 0.1


def test_rollout_of_the_identity_is_the_identity_and_rows_sum_to_one():
    eye = torch.eye(N).expand(2, N, N)
    torch.testing.assert_close(rollout([eye, eye]), torch.eye(N, dtype=torch.float64))
    mixed = rollout([planted(), planted(), planted()])
    torch.testing.assert_close(mixed.sum(-1), torch.ones(N, dtype=torch.float64))


def test_a_single_token_has_habits_too():
    found = habits(torch.ones(2, 1, 1), torch.zeros(1, dtype=torch.bool))
    assert found[0].itself == 1.0
    assert math.isnan(found[0].previous)
