"""Flags of a contestant: what is unusual about it, in short words for a table or a script."""

import statistics
from collections.abc import Mapping, Sequence

from kinfolk.contests.evidence import RateCurve, Retrial
from kinfolk.contests.groups import scores_of
from kinfolk.contests.outcome import CRASHED, DIVERGED, OUT_OF_MEMORY, TIMED_OUT, Outcome
from kinfolk.objectives.measures.measure import measure_of

EARLY_SHARE = 1 / 8
"""Of the steps: who is ahead by then and behind at the end is said to be."""

TURNED = 0.01
"""A last validation that is worse than the best one by this share of it has turned up."""


def flags(
    name: str,
    measure: str,
    outcomes: Mapping[str, Sequence[Outcome]],
    rates: RateCurve | None,
    retrials: Sequence[Retrial] = (),
    as_is: Sequence[Outcome] = (),
) -> list[str]:
    """Return what is unusual: failed trials, the clock, an upturned validation, an early lead, a rate at the edge.

    Or a difference that is the rates' and not the contestants', or a search that ended with a worse rate than it began
    with. as_is: the trials at the recipe's own rate.
    """
    trials = outcomes.get(name, ())
    found = []
    for status in (DIVERGED, CRASHED, OUT_OF_MEMORY, TIMED_OUT):
        if n := sum(trial.status == status for trial in trials):
            found.append(f"{status} ({n} of {len(trials)} trials)")
    if n := sum(trial.cut_short for trial in trials):
        found.append(f"cut short by the clock ({n} of {len(trials)} trials)")
    done = [trial for trial in trials if trial.done and measure in trial.curve[-1].valid]
    if n := sum(_turned(trial, measure) for trial in done):
        found.append(f"validation turned up ({n} of {len(done)} trials): it may have overfitted")
    if passed := _passed_by(name, measure, outcomes):
        found.append(f"ahead of {', '.join(passed)} at {EARLY_SHARE:g} of the steps and behind at the end")
    if rates is not None and rates.edge:
        found.append(f"its best rate is the {rates.edge} that was tried")
    if _better(as_is, trials, measure):
        found.append("better at its recipe's own rate, under every seed, than at the one that was chosen")
    for again in retrials:
        if again.open:
            at = " ".join([f"{again.lr:.3g}", *(f"{key} {value:.3g}" for key, value in again.others.items())])
            found.append(f"told apart by the choice of a rate: at {at} {again.name} has {again.score:.4f}")
    return found


def _better(some: Sequence[Outcome], others: Sequence[Outcome], measure: str) -> bool:
    """Tell whether some trials are better than others under every seed that both have, two at least."""
    first, second = scores_of(some, measure), scores_of(others, measure)
    sign = -1 if measure_of(measure).higher else 1
    gaps = [sign * (first[seed] - second[seed]) for seed in first.keys() & second.keys()]
    return len(gaps) > 1 and all(gap < 0 for gap in gaps)


def _turned(trial: Outcome, measure: str) -> bool:
    values = [point.valid[measure] for point in trial.curve if measure in point.valid]
    higher = measure_of(measure).higher
    best = max(values) if higher else min(values)
    worse = best - values[-1] if higher else values[-1] - best
    return worse > TURNED * abs(best)


def _passed_by(name: str, measure: str, outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Return who was behind this contestant at the first validation after an eighth of the steps, and is ahead now.

    By paired seeds: both differences must point the same way for every seed that the two share.
    """
    own = _ends(outcomes.get(name, ()), measure)
    passed = []
    for other, trials in outcomes.items():
        theirs = _ends(trials, measure)
        shared = sorted(own.keys() & theirs.keys())
        if other == name or len(shared) < 2:
            continue
        early = [own[seed][0] - theirs[seed][0] for seed in shared]
        late = [own[seed][1] - theirs[seed][1] for seed in shared]
        sign = -1 if measure_of(measure).higher else 1
        if all(sign * gap < 0 for gap in early) and all(sign * gap > 0 for gap in late):
            passed.append(other)
    return passed


def _ends(trials: Sequence[Outcome], measure: str) -> dict[int, tuple[float, float]]:
    """Return the early and the last score of each seed, where validations are at comparable shares of the steps."""
    found = {}
    for trial in trials:
        points = [p for p in trial.curve if measure in p.valid] if trial.done else []
        first = next((p for p in points if p.step >= EARLY_SHARE * trial.steps), None)
        if first is not None and first is not points[-1]:
            found[trial.seed] = (first.valid[measure], points[-1].valid[measure])
    return found


def epochs(trials: Sequence[Outcome], train_tokens: int) -> float | None:
    """Return how often a trial saw the training data, on average."""
    done = [trial.tokens for trial in trials if trial.done]
    return statistics.fmean(done) / train_tokens if done and train_tokens else None
