"""Outcomes that no trial produced, for tests of what is made of them."""

from collections.abc import Sequence
from pathlib import Path

from kinfolk.contests.comparison import Card, Comparison
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
