"""Groups of contestants that can be ranked with each other: those that share a measure.

A loss is a mean over certain targets, and means over different targets are different questions: a masked token is
guessed from both sides, a next token from one. So contestants are grouped by a measure they share, the measure of the
largest group first, and ranks exist only inside a group.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from kinfolk.contests.outcome import Outcome
from kinfolk.objectives.measures.measure import measure_of


@dataclasses.dataclass(frozen=True)
class Group:
    """Contestants that can be ranked with each other, by the measure they share."""

    measure: str
    names: tuple[str, ...]


def group(outcomes: Mapping[str, Sequence[Outcome]]) -> list[Group]:
    """Put every contestant that has a result into the largest group whose measure it has.

    Among measures that as many share, one that is no loss (accuracy) is what people ask for; of losses, the one that
    the contestants name first wins: it is their own training loss.
    """
    measures = {name: _measures(trials) for name, trials in outcomes.items()}
    left = [name for name, known in measures.items() if known]
    groups: list[Group] = []
    while left:
        counts = Counter(measure for name in left for measure in measures[name])
        place = {measure: min(m.index(measure) for m in measures.values() if measure in m) for measure in counts}
        best = min(
            counts,
            key=lambda measure: (-counts[measure], not measure_of(measure).higher, place[measure], measure),
        )
        groups.append(Group(best, tuple(name for name in left if best in measures[name])))
        left = [name for name in left if best not in measures[name]]
    return groups


def aligned(measure: str, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, list[float]]:
    """Return the last score of every contestant by seed, in one order of seeds; NaN where a trial has none."""
    ends = {name: scores_of(trials, measure) for name, trials in outcomes.items()}
    seeds = sorted({seed for row in ends.values() for seed in row})
    return {name: [row.get(seed, math.nan) for seed in seeds] for name, row in ends.items()}


def scores_of(trials: Sequence[Outcome], measure: str) -> dict[int, float]:
    """Return the last score of each seed that has one."""
    return {trial.seed: trial.scores[measure] for trial in finished(trials) if measure in trial.scores}


def finished(trials: Sequence[Outcome]) -> list[Outcome]:
    """Return the trials that have a score."""
    return [trial for trial in trials if trial.done]


def _measures(trials: Sequence[Outcome]) -> tuple[str, ...]:
    """Return the measures that every finished trial of a contestant ends with, in its own order."""
    ends = [trial.scores for trial in finished(trials)]
    return tuple(measure for measure in ends[0] if all(measure in end for end in ends)) if ends else ()
