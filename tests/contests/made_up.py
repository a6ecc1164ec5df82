"""Outcomes that no trial produced, for tests of what is made of them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kinfolk.contests.comparison import Card, Comparison
from kinfolk.contests.evidence import Battery, Branch, Crossing, Protocol, RateCurve, RateTried, Sizes, Spent
from kinfolk.contests.outcome import CRASHED, DIVERGED, DONE, Outcome, Point

NASTY = "</script><b>&\"'"


def outcome(name: str, seed: int, losses: dict[str, Sequence[float]], **fields: object) -> Outcome:
    """A finished trial of one step per loss."""
    length = len(next(iter(losses.values())))
    curve = tuple(
        Point(
            step=i + 1,
            tokens=100 * (i + 1),
            seconds=0.5 * (i + 1),
            flops=1e6 * (i + 1),
            valid={measure: values[i] for measure, values in losses.items()},
        )
        for i in range(length)
    )
    known: dict[str, object] = {
        "steps": length,
        "planned_steps": length,
        "tokens": 100 * length,
        "seconds": 0.5 * length,
        "flops": 1e6 * length,
        "tokens_per_second": 200.0,
        "params": 1000,
        "start_bytes": 10**8,
        "peak_bytes": 3 * 10**8,
        "bytes_per_token": 2.0,
        "curve": curve,
    }
    return Outcome(name=name, seed=seed, status=DONE, **(known | fields))  # type: ignore[arg-type]


def comparison(folder: Path) -> Comparison:
    """Two that share a measure, one that does not, one that failed and one that was never run."""
    outcomes = {
        "gpt": tuple(
            outcome("gpt", s, {"next-token": [3.0, 2.0 + s / 100], "continuation": [2.9, 1.9 + s / 100]})
            for s in (0, 1)
        ),
        "vanilla": tuple(outcome("vanilla", s, {"continuation": [3.1, 2.5 + s / 100]}) for s in (0, 1)),
        "bert": tuple(outcome("bert", s, {"masked-token": [4.0, 3.0 + s / 10]}) for s in (0, 1)),
        NASTY: (
            Outcome(name=NASTY, seed=0, status=DIVERGED, reason=f"loss is nan at step 3 {NASTY}", steps=3),
            Outcome(name=NASTY, seed=1, status=CRASHED, reason="exit code 1\nValueError: x"),
        ),
    }
    cards = [
        Card(
            name=name,
            parent="vanilla",
            year=2018,
            paper=f"A paper {NASTY}",
            changes="one thing",
            spec=f"x = '{NASTY}'",
            params=1000,
            flops_per_token=2e3,
            differences=(("model.x", "1", NASTY),),
        )
        for name in outcomes
    ]
    cards.append(Card(name="broken", problem="no such kind"))
    facts = {"command": f"kin compare gpt --data '{NASTY}'", "budget": "10 s each", "seeds": "2 seeds"}
    return Comparison(folder=folder, title=f"a title {NASTY}", facts=facts, cards=tuple(cards), outcomes=outcomes)


def everything(folder: Path) -> Comparison:
    """The same with everything that a protocol can find: rates, budgets, sizes, battery and costs."""
    made = comparison(folder)
    tried = tuple(
        RateTried(lr=lr, share=share, losses={"100": 2 + abs(lr - 1e-3), "101": 2 + abs(lr - 1e-3)})
        for share in (0.5, 1.0)
        for lr in (3e-4, 1e-3, 3e-3)
    )
    curve = RateCurve(
        measure="continuation", own=1e-3, chosen=1e-3, tried=tried, edge="highest", spent=Spent(trials=8, tokens=900)
    )
    branches = tuple(
        Branch(share=share, tokens=1000 * share, flops=1e6 * share, losses={"0": 3 - share}, mean=3 - share)
        for share in (0.125, 0.5, 1.0)
    )
    battery = Battery(
        by_position={"32": 3.0, "64": 2.5},
        longer={"1x": 2.5, "2x": 2.6},
        tasks={"copy": {"exact": 0.9}},
        decoding={"256": {"tokens_per_second": 900.0, "state_bytes": 1e5}, "1024": {"tokens_per_second": 700.0}},
        latency=0.01,
        train_bytes=10**8,
        problems={"needle": f"too long {NASTY}"},
    )
    sizes = Sizes(
        ranks={"tiny": {"gpt": 1, "vanilla": 2}, "small": {"gpt": 2, "vanilla": 1}},
        losses={"tiny": {"gpt": 1.9, "vanilla": 2.5}, "small": {"gpt": 1.8, "vanilla": 1.7}},
        tau={"tiny,small": -1.0},
        crossings=(Crossing(first="gpt", second="vanilla", flops=None, low=None, high=None, says="cannot be said"),),
    )
    protocol = Protocol(
        tune="lr",
        match="params",
        chosen_on="valid",
        judged_on="test",
        looks=(2, 4),
        tuning_seeds=(100, 101),
        seeds=(0, 1),
        costs={"tuning": Spent(trials=8, tokens=900, seconds=3.0, flops=3e6)},
    )
    names = ("gpt", "vanilla")
    return dataclasses.replace(
        made,
        protocol=protocol,
        as_is={name: made.outcomes[name] for name in names},
        searched={name: (outcome(name, 100, {"continuation": [3.0, 2.2]}),) for name in names},
        rates=dict.fromkeys(names, curve),
        branches=dict.fromkeys(names, branches),
        battery=dict.fromkeys(names, battery),
        sizes=sizes,
    )
