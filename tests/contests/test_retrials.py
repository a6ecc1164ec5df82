"""Equals whose searches end at different rates are not told apart; a real difference is, at every rate."""

import json
import math
import random
import runpy
from pathlib import Path

import numpy as np
import pytest

from kinfolk.contests import retrials
from kinfolk.contests.evidence import FULL, RateCurve, RateTried
from kinfolk.contests.flags import flags
from kinfolk.contests.groups import Group
from kinfolk.contests.inference import BETTER, OPEN, WORSE, Standing
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import DIVERGED, DONE, Outcome, Point
from tests.contests.test_run import TUNED, Machine, compare, scored
from tests.contests.test_run import machine as machine

PAIR = Group("next-token", ("a", "b"))


def curve(chosen: float, finals: dict[float, tuple[float, float]] | None = None) -> RateCurve:
    tried = tuple(RateTried(lr=lr, share=FULL, losses={"1": x, "2": y}) for lr, (x, y) in (finals or {}).items())
    return RateCurve(measure="next-token", own=1e-3, chosen=chosen, tried=tried)


def trials(name: str, mean: float, n: int = 5, draw: str = "") -> list[Outcome]:
    rng = random.Random(f"{name} {draw}")
    found = []
    for seed in range(n):
        loss = mean + random.Random(seed).gauss(0, 0.1) + rng.gauss(0, 0.01)
        point = Point(step=1, tokens=1, seconds=1.0, flops=1.0, valid={"next-token": loss})
        found.append(Outcome(name=name, seed=seed, status=DONE, curve=(point,)))
    return found


def by_name(places: list[Standing]) -> dict[str, Standing]:
    return {place.name: place for place in places}


@pytest.mark.parametrize("against", ["", "a", "b"])
def test_a_difference_of_rates_is_not_one_of_contestants(against: str) -> None:
    """Whether the worse one is the row or the named baseline: at the better one's rate it is as good."""
    outcomes = {"a": trials("a", 2.0), "b": trials("b", 2.2)}
    rates = {"a": curve(1e-3), "b": curve(3e-3)}
    plain = retrials.standings(PAIR, outcomes, against)
    row = "a" if against == "b" else "b"
    assert by_name(plain)[row].verdict == (BETTER if against == "b" else WORSE)
    (pair,) = retrials.pairs(plain, rates)
    assert (pair.worse, pair.better, pair.points) == ("b", "a", ((1e-3, ()),))
    retried = {("b", pair.points[0]): trials("b", 2.0, draw="again")}
    place, before = (
        by_name(found)[row] for found in (retrials.standings(PAIR, outcomes, against, (), rates, retried), plain)
    )
    assert place.verdict == OPEN
    (again,) = place.retrials
    # the hull of both intervals; the difference shown is still that at their own rates
    assert (place.low, place.high) == (min(before.low or 0, again.low), max(before.high or 0, again.high))
    assert place.difference == before.difference
    assert (place.p or 0) > 0.05 > (before.p or 1)
    said = flags(row, "next-token", outcomes, rates[row], place.retrials)
    assert said == [f"told apart by the choice of a rate: at 0.001 b has {again.score:.4f}"]


def test_a_real_difference_remains() -> None:
    outcomes = {"a": trials("a", 2.0), "b": trials("b", 2.2)}
    rates = {"a": curve(1e-3), "b": curve(3e-3)}
    retried = {("b", (1e-3, ())): trials("b", 2.3, draw="again")}
    place = by_name(retrials.standings(PAIR, outcomes, "", (), rates, retried))["b"]
    assert place.verdict == WORSE
    assert 0 < (place.low or 0) < 0.2 < 0.3 < (place.high or 0)
    assert flags("b", "next-token", outcomes, rates["b"], place.retrials) == []


def test_finalists_that_a_final_cannot_exclude_are_tried_again() -> None:
    outcomes = {"a": trials("a", 2.0), "b": trials("b", 2.2)}
    # 3e-4 is within the noise of the verdict's trials, 9e-3 is not; at 2.7e-2 the final itself is too noisy to say
    finals = {1e-3: (2.0, 2.1), 3e-4: (2.01, 2.12), 9e-3: (2.4, 2.5), 2.7e-2: (2.0, 2.9)}
    rates = {"a": curve(1e-3), "b": curve(1e-3, finals)}
    (pair,) = retrials.pairs(retrials.standings(PAIR, outcomes), rates)
    assert pair.points == ((3e-4, ()), (2.7e-2, ()))
    # what is not trained yet, or diverged, is left out
    lost = Outcome(name="b", seed=0, status=DIVERGED, reason="loss is nan")
    retried = {("b", (3e-4, ())): [lost] * 5}
    assert by_name(retrials.standings(PAIR, outcomes, "", (), rates, retried))["b"].verdict == WORSE


def test_nothing_is_tried_again_where_nothing_was_chosen_or_told_apart() -> None:
    close = {"a": trials("a", 2.0), "b": trials("b", 2.0)}
    assert retrials.pairs(retrials.standings(PAIR, close), {"a": curve(1e-3), "b": curve(3e-3)}) == []
    apart = {"a": trials("a", 2.0), "b": trials("b", 2.2)}
    assert retrials.pairs(retrials.standings(PAIR, apart), {}) == []
    assert retrials.pairs(retrials.standings(PAIR, apart), {"a": curve(1e-3), "b": curve(1e-3)}) == []


def test_a_comparison_trains_the_worse_one_at_the_rate_of_the_better(machine: Machine, tmp_path: Path) -> None:
    """A search that is misled: gpt2 seems best at 9e-3 to the search, and is as good as gpt at gpt's rate."""

    def misled(job: Job) -> Outcome:
        order = json.loads((job.folder / "trial.json").read_text())
        lr = order["recipe"]["training"]["optimiser"]["lr"]
        noise = random.Random(f"{job.name} {job.seed} {lr}").gauss(0, 0.01)
        return scored(job).replace(test={"next-token": 2 + (0.3 if lr > 1e-3 else 0.0) + noise})

    machine.how = misled
    asked = TUNED | {"contestants": ("gpt", "gpt2")}
    result = compare(tmp_path, **asked)
    rows = {row.name: row for row in result.rows}
    assert {name: result.rates[name].chosen for name in rows} == {"gpt": 1e-3, "gpt2": 9e-3}
    assert (rows["gpt2"].mark, rows["gpt2"].rank) == ("≈", 2)
    assert any(flag.startswith("told apart by the choice of a rate: at 0.001 gpt2") for flag in rows["gpt2"].flags)
    # 1e-3 is its own rate too, whose trials were there for the column "as is": nothing is trained twice
    assert "retrials" not in result.protocol.costs
    assert len(result.retried["gpt2", (1e-3, ())]) == 5
    plain = json.loads((tmp_path / "results.json").read_text())
    assert {trial["lr"] for trial in plain["retried"]} >= {1e-3}
    machine.rounds.clear()
    compare(tmp_path, **asked)
    assert machine.rounds == []


def test_equals_are_told_apart_in_at_most_five_percent_with_tuning_simulated() -> None:
    """80 gates with looks at 5, 7 and 9 seeds, whose searches end at different rates in about a fifth."""
    study = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "studies" / "verdict.py"))
    rng = np.random.default_rng(5)
    told, differ = 0, 0
    for _ in range(80):
        bowl = study["Bowl"](at=rng.uniform(-0.5, 0.5))
        _, after, distinct = study["contest"](rng, {"c0": bowl, "c1": bowl}, "c0", 9)
        told, differ = told + bool(after), differ + (distinct > 1)
    assert differ >= 8
    assert told / 80 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 80)
