"""The search for several hyperparameters: over the same trials, seeded, the same whatever was interrupted."""

import math
from collections.abc import Callable

import pytest

from kinfolk.contests.evidence import FULL, HALF
from kinfolk.contests.outcome import DIVERGED, Outcome
from kinfolk.contests.rates import SEEDS, SearchOrder
from kinfolk.contests.space import SpaceSearch, assigned, available
from kinfolk.family.making import make
from tests.contests.made_up import outcome

pytest.importorskip("optuna")
SEARCH = SpaceSearch(1e-3, ("lr", "weight_decay"), "next-token")


def bowl(order: SearchOrder) -> Outcome:
    decay = dict(order.others).get("weight_decay", 0.01)
    loss = 2 + math.log(order.lr / 4e-3) ** 2 / 10 + math.log(decay / 0.05) ** 2 / 50 + 0.1 / order.share
    return outcome("gpt", order.seed, {"next-token": [9.0, loss]})


def run(
    search: SpaceSearch, how: Callable[[SearchOrder], Outcome], backwards: bool = False
) -> dict[SearchOrder, Outcome]:
    known: dict[SearchOrder, Outcome] = {}
    while orders := search.orders(known):
        missing = [order for order in orders if order not in known]
        for order in reversed(missing) if backwards else missing:
            known[order] = how(order)
    return known


def test_a_search_finds_the_bowl_and_is_the_same_in_any_order_of_ending() -> None:
    known = run(SEARCH, bowl)
    assert known == run(SEARCH, bowl, backwards=True)
    found = SEARCH.result(known)
    assert 2e-3 < found.chosen < 8e-3
    assert set(found.others) == {"weight_decay"}
    assert found.spent.trials == len(known) == 1 + 15 + 6
    assert {order.seed for order in known if order.share == HALF} == {SEEDS[0]}
    assert {order.seed for order in known if order.share == FULL} == set(SEEDS[1:])


@pytest.mark.parametrize("stop", [1, 4, 6, 11, 17, 21])
def test_stopped_at_any_trial_it_orders_the_same(stop: int) -> None:
    whole, known = run(SEARCH, bowl), dict[SearchOrder, Outcome]()
    for _ in range(stop):
        order = next(order for order in SEARCH.orders(known) if order not in known)
        known[order] = bowl(order)
    again = SpaceSearch(SEARCH.own, SEARCH.names, SEARCH.measure)
    while orders := again.orders(known):
        known |= {order: bowl(order) for order in orders if order not in known}
    assert known == whole
    assert again.result(known) == SEARCH.result(whole)


def test_failed_trials_are_told_and_the_recipes_own_wins_a_tie() -> None:
    diverged = Outcome(name="gpt", seed=0, status=DIVERGED)
    found = SEARCH.result(run(SEARCH, lambda order: diverged if order.lr > 1e-3 else bowl(order)))
    assert found.chosen <= 1e-3
    flat = SEARCH.result(run(SEARCH, lambda order: outcome("gpt", order.seed, {"next-token": [9.0, 2.0]})))
    assert (flat.chosen, flat.others) == (1e-3, {})
    nothing = SEARCH.result(run(SEARCH, lambda order: diverged))
    assert (nothing.chosen, nothing.others) == (1e-3, {})


def test_hyperparameters_reach_the_recipe_as_far_as_it_has_them() -> None:
    recipe = make("gpt2", size="tiny")
    assert available(("lr", "weight_decay", "dropout", "clip"), recipe) == ("lr", "weight_decay", "dropout", "clip")
    changed = assigned(recipe, {"weight_decay": 0.123, "dropout": 0.05})
    assert changed.training.optimiser.weight_decay == 0.123
    assert changed.model.dropout == 0.05
