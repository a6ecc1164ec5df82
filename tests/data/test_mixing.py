import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.data.batches.mixing import fraction, mix, permute


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63 - 1))
def test_a_permutation_meets_everything_once(n: int, seed: int) -> None:
    assert sorted(permute(np.arange(n), n, seed).tolist()) == list(range(n))


def test_a_permutation_needs_no_memory_for_its_range() -> None:
    n = 10**15 + 37
    places = np.array([0, 1, n - 1])
    found = permute(places, n, 5)
    assert ((found >= 0) & (found < n)).all()
    assert len(set(found.tolist())) == 3


def test_another_seed_is_another_permutation() -> None:
    orders = {tuple(permute(np.arange(50), 50, seed).tolist()) for seed in range(20)}
    assert len(orders) == 20


def test_a_permutation_moves_things_everywhere() -> None:
    # where the first of 10 goes, over many seeds, is about uniform: each place 100 times out of 1,000
    first = np.array([permute(np.array([0]), 10, seed)[0] for seed in range(1000)])
    assert np.bincount(first, minlength=10).min() > 60


def test_a_hash_depends_on_every_number_and_on_their_order() -> None:
    words = [mix(0, 1, 2), mix(0, 2, 1), mix(1, 1, 2), mix(0, 1), mix(0, 1, 2, 0), mix(0)]
    assert len({int(word) for word in words}) == len(words)


def test_a_hash_of_an_array_is_the_hash_of_its_elements() -> None:
    numbers = np.arange(7)
    assert mix(3, 5, numbers).tolist() == [int(mix(3, 5, int(i))) for i in numbers]


def test_fractions_are_uniform() -> None:
    numbers = fraction(mix(0, np.arange(10_000)))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.02)
