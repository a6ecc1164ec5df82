"""Several sizes together: ranks, Kendall's tau, laws of compute, crossings."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from kinfolk.contests.comparison import Card, Comparison
from kinfolk.contests.scaling.law import Measured, fit
from kinfolk.contests.sizes import crossing, gather, joined, kendall
from tests.contests.made_up import outcome

REACH = (1e6, 1e8)


def at(flops: dict[str, float], laws: dict[str, tuple[float, float, float]], folder: Path) -> dict[str, Comparison]:
    """Comparisons whose losses lie on laws, with a little noise for each seed."""
    draw, found = np.random.default_rng(0), {}
    for size, c in flops.items():
        trials = {
            name: tuple(
                outcome(name, seed, {"next-token": [9.0, e + a * c**-b + 1e-3 * draw.standard_normal()]}, flops=c)
                for seed in range(3)
            )
            for name, (e, a, b) in laws.items()
        }
        cards = tuple(Card(name=name) for name in laws)
        found[size] = Comparison(folder=folder / size, title="t", facts={}, cards=cards, outcomes=trials)
    return found


@pytest.mark.parametrize("ties", [False, True])
def test_kendalls_tau_is_scipys(ties: bool) -> None:
    draw = np.random.default_rng(1)
    for n in (2, 5, 20):
        a, b = (draw.integers(0, 4, n) if ties else draw.standard_normal(n) for _ in range(2))
        wanted = stats.kendalltau(a, b).statistic
        assert kendall(list(a), list(b)) == (None if np.isnan(wanted) else pytest.approx(wanted))
    assert kendall([1.0], [2.0]) is None


def test_ranks_that_turn_round_have_a_crossing_between_the_sizes(tmp_path: Path) -> None:
    flops = {"tiny": 1e6, "small": 1e7, "base": 1e8}
    # equal at C = 1e7.25, where 4 C^-0.05 = 9 C^-0.0987
    laws = {"flat": (0.0, 4.0, 0.05), "steep": (0.0, 9.0, 0.05 + np.log10(9 / 4) / 7.25)}
    found = gather(at(flops, laws, tmp_path))
    assert found.ranks["tiny"] == {"flat": 1, "steep": 2}
    assert found.ranks["base"] == {"flat": 2, "steep": 1}
    assert found.tau == {"tiny,small": 1.0, "tiny,base": -1.0, "small,base": -1.0}
    (meeting,) = found.crossings
    assert meeting.flops == pytest.approx(10**7.25, rel=0.1)
    assert (meeting.low or math.inf) < 10**7.25 < (meeting.high or 0.0)
    assert "steep is ahead beyond" in meeting.says
    assert set(found.laws) == {"flat", "steep"}


def test_two_sizes_are_no_law_and_parallel_laws_do_not_cross(tmp_path: Path) -> None:
    laws = {"a": (0.0, 4.0, 0.05), "b": (0.0, 5.0, 0.05)}
    found = gather(at({"tiny": 1e6, "small": 1e7}, laws, tmp_path))
    assert found.crossings[0].says == "the data cannot say: a law needs three sizes"
    assert found.laws["a"] == {"says": "three sizes are the fewest for a law, found 2"}
    found = gather(at({"tiny": 1e6, "small": 1e7, "base": 1e8}, laws, tmp_path))
    assert found.crossings[0].says == "a stays ahead up to 100 times the largest training"
    assert found.crossings[0].flops is None


def test_noise_as_large_as_the_difference_cannot_say() -> None:
    draw = np.random.default_rng(3)
    laws = [
        fit([Measured(1.0, c, 4 * c**-0.05 * np.exp(0.03 * draw.standard_normal())) for c in (1e6, 1e7, 1e8) * 2])
        for _ in range(2)
    ]
    found = crossing("a", laws[0], "b", laws[1], REACH)
    assert found.flops is None
    assert found.says.startswith("the data cannot say")


def test_the_joined_comparison_is_the_largest_with_all_costs(tmp_path: Path) -> None:
    made = at({"tiny": 1e6, "small": 1e7}, {"a": (0.0, 4.0, 0.05)}, tmp_path)
    result = joined(made, "all", "kin compare a")
    assert result.folder == tmp_path
    assert result.outcomes == made["small"].outcomes
    assert result.sizes == gather(made)
    assert dataclasses.replace(result, sizes=None).rows[0].final == made["small"].rows[0].final
