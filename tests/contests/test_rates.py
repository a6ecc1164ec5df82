"""The search for a learning rate: which trials it asks for, what it chooses, and that it depends on outcomes alone."""

import math
from collections.abc import Callable

import pytest

from kinfolk.contests.evidence import FULL, HALF
from kinfolk.contests.outcome import DIVERGED, DONE, Outcome, Point
from kinfolk.contests.rates import EXTENSIONS, LADDER, SEEDS, Search, SearchOrder, within_noise

Loss = Callable[[SearchOrder], float]


def outcome(order: SearchOrder, loss: float) -> Outcome:
    point = Point(step=1, tokens=10, seconds=1.0, flops=2.0, valid={"m": loss})
    good = math.isfinite(loss)
    return Outcome(
        name="a",
        seed=order.seed,
        status=DONE if good else DIVERGED,
        tokens=10,
        flops=2.0,
        steps=1,
        curve=(point,) if good else (),
    )


def played(search: Search, loss: Loss) -> tuple[dict[SearchOrder, Outcome], list[list[SearchOrder]]]:
    """Run a search to its end: what was tried, and round by round what was asked for anew."""
    outcomes: dict[SearchOrder, Outcome] = {}
    rounds = []
    while missing := [order for order in search.orders(outcomes) if order not in outcomes]:
        rounds.append(missing)
        outcomes |= {order: outcome(order, loss(order)) for order in missing}
    return outcomes, rounds


def bowl(best: float, noise: float = 0.0) -> Loss:
    return lambda order: 2 + math.log(order.lr / best, 3) ** 2 / 10 + noise * math.sin(1e7 * order.lr + order.seed)


def test_five_rates_at_half_of_the_budget_then_two_at_all_of_it() -> None:
    search = Search(1e-3, "m")
    outcomes, rounds = played(search, bowl(2e-3))
    assert rounds[0] == [SearchOrder(lr, HALF, SEEDS[0]) for lr in (1.11111e-4, 3.33333e-4, 1e-3, 3e-3, 9e-3)]
    assert rounds[1] == [SearchOrder(lr, FULL, seed) for seed in SEEDS[1:] for lr in (1e-3, 3e-3)]
    curve = search.result(outcomes)
    assert (curve.chosen, curve.own, curve.edge, curve.spent.trials) == (3e-3, 1e-3, "", 9)
    assert (curve.spent.tokens, curve.spent.flops) == (90, 18.0)
    assert {(tried.lr, tried.share) for tried in curve.tried} >= {(9e-3, HALF), (3e-3, FULL)}


@pytest.mark.parametrize(
    ("best", "chosen", "edge"), [(1e-5, 1.23457e-5, ""), (0.1, 0.081, ""), (10.0, 0.243, "highest")]
)
def test_a_best_rate_at_the_edge_extends_the_ladder(best: float, chosen: float, edge: str) -> None:
    search = Search(1e-3, "m")
    outcomes, _ = played(search, bowl(best))
    curve = search.result(outcomes)
    assert curve.chosen == pytest.approx(chosen, rel=1e-4)
    assert curve.edge == edge
    assert len({order.lr for order in outcomes}) <= len(LADDER) + EXTENSIONS


def test_the_smaller_rate_wins_ties_within_noise() -> None:
    search = Search(1e-3, "m")

    def loss(order: SearchOrder) -> float:
        flat = {1e-3: 2.0, 3e-3: 1.99}.get(order.lr, 3.0)
        # the larger is a little better on average and worse with one of two seeds
        return flat + (0.1 if (order.lr, order.seed) == (3e-3, SEEDS[1]) else -0.1 if order.lr == 3e-3 else 0.0)

    assert search.result(played(search, loss)[0]).chosen == 1e-3
    assert search.result(played(search, lambda o: {1e-3: 2.0, 3e-3: 1.9}.get(o.lr, 3.0))[0]).chosen == 3e-3
    # of a score that should be high, the other way round
    high = Search(1e-3, "m", higher=True)
    assert high.result(played(high, lambda o: {1e-3: 0.8, 3e-3: 0.9}.get(o.lr, 0.1))[0]).chosen == 3e-3


@pytest.mark.parametrize(
    ("differences", "within"),
    [((0.1, 0.1), False), ((0.3, 0.08), False), ((0.3, 0.01), False), ((0.3, 0.0), True), ((0.3, -0.01), True)],
)
def test_noise_is_one_standard_error_of_two_differences(differences: tuple[float, float], within: bool) -> None:
    """Of a and b: mean (a + b) / 2, standard deviation |a - b| / sqrt(2), standard error |a - b| / 2."""
    best = (2.0, 3.0)
    losses = [loss + difference for loss, difference in zip(best, differences, strict=True)]
    assert within_noise(losses, best) == within
    # the mean is above 0 by less than one standard error where exactly one seed is better, and only there
    assert within == (min(differences) <= 0)


def test_rates_that_diverge_are_not_chosen() -> None:
    search = Search(1e-3, "m")
    outcomes, _ = played(search, lambda o: math.nan if o.lr > 2e-3 else 3 - 100 * o.lr)
    curve = search.result(outcomes)
    assert curve.chosen == 1e-3
    assert [tried.mean for tried in curve.tried if tried.lr > 2e-3] == [None, None]
    # a rate that diverges only at the full budget loses to the other finalist
    late = played(search, lambda o: math.nan if o.lr == 1e-3 and o.share == FULL else bowl(1.2e-3)(o))[0]
    assert search.result(late).chosen in (3e-3, 3.33333e-4)
    # where everything diverges smaller rates are tried, and then the recipe keeps its own
    nothing, rounds = played(search, lambda o: math.nan)
    assert [len(asked) for asked in rounds] == [5, 1, 1, 1]
    assert search.result(nothing).chosen == 1e-3


def test_a_search_that_was_stopped_asks_for_the_same() -> None:
    """Whatever subset of a stage has ended, what is left is asked for, and the end is the same."""
    search = Search(1e-3, "m")
    whole, _ = played(search, bowl(5e-2, noise=0.01))
    for known in range(len(whole)):
        # outcomes in any order, as trials side by side leave them
        outcomes = dict(sorted(whole.items(), key=lambda item: (item[0].share, -item[0].seed))[:known])
        while missing := [order for order in search.orders(outcomes) if order not in outcomes]:
            assert set(missing) <= set(whole)
            outcomes |= {order: whole[order] for order in missing[:2]}
        assert search.result(outcomes) == search.result(whole)


def test_the_recipes_own_rate_is_always_in_the_final() -> None:
    """Half of a short schedule may prefer rates that the whole one does not: tuning never ends worse than untuned."""
    search = Search(1e-3, "m")

    def loss(order: SearchOrder) -> float:
        return bowl(9e-3 if order.share == HALF else 1e-3)(order)

    outcomes, rounds = played(search, loss)
    assert {order.lr for order in rounds[-1]} >= {1e-3, 9e-3}
    assert search.result(outcomes).chosen == 1e-3
