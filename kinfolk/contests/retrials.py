"""Retrials: a contestant is called worse only if it is worse at every learning rate that may be its best.

A search for rates has noise. Two equal contestants may end at different rates, and at different rates they are no
longer equal: the difference is real, but it is the search's, not theirs. So the worse one of a pair told apart
is judged again, with the same seeds, at

    the rate of the better one (where that is another), and
    each finalist of its own search that its final cannot exclude (within three standard errors of its choice),

and is worse only if it is worse at all of them: an intersection-union test (Berger 1982), whose level is that of a
single test, without a model of the search. Of two contestants with one loss-rate curve the first retrial compares like
with like, whichever rates their searches end at. Of two with equal losses at best rates of their own, one of the
retrials, or the verdict itself, is at the worse one's best rate, and there it is not worse.

The hull of all intervals is shown: it holds the difference at each of these rates, and so at the best of them. A real
difference stays visible: the worse one is worse at its best rate, and elsewhere worse still.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from kinfolk.contests.evidence import FULL, RateCurve, RatePoint, Retrial
from kinfolk.contests.groups import Group, aligned, scores_of
from kinfolk.contests.inference import BETTER, OPEN, WORSE, Standing, judge
from kinfolk.contests.outcome import Outcome
from kinfolk.objectives.measures.measure import measure_of

NEAR = 3.0
"""Standard errors of a final within which a finalist may be better than the choice."""

Retried = Mapping[tuple[str, RatePoint], Sequence[Outcome]]
"""Trials of a contestant at another point than its choice."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two told apart, the worse one's points to be judged at again, and whose difference it is."""

    worse: str
    better: str
    points: tuple[RatePoint, ...]

    def row(self, named: str) -> str:
        """Return the one that is not the reference: it has the difference."""
        return self.better if self.worse == named else self.worse


def pairs(places: Sequence[Standing], rates: Mapping[str, RateCurve]) -> list[Pair]:
    """Return every pair told apart, where the worse one has further points."""
    reference = next((place for place in places if place.p is None and place.seeds > 1), None)
    found = []
    for place in places:
        if reference is None or place.verdict not in (WORSE, BETTER):
            continue
        worse, better = (place, reference) if place.verdict == WORSE else (reference, place)
        if worse.name in rates and better.name in rates:
            points = _points(rates[worse.name], rates[better.name], worse.noise or 0.0)
            found += [Pair(worse.name, better.name, points)] if points else []
    return found


def _points(worse: RateCurve, better: RateCurve, noise: float) -> tuple[RatePoint, ...]:
    """Return the better one's point, and finalists near the choice, without the choice itself.

    Finals are paired by seed; the standard error of a mean difference over n seeds is taken from the noise of the
    verdict's trials, or from the final itself where that is larger: some rates are noisier than others.
    """
    finals = {tried.point: tried.losses for tried in worse.tried if tried.share == FULL}
    chosen, sign = finals.get(worse.point, {}), -1 if measure_of(worse.measure).higher else 1
    points = dict.fromkeys([better.point])
    for point, losses in finals.items():
        gaps = [
            sign * (loss - own)
            for seed, own in chosen.items()
            if own is not None and (loss := losses.get(seed)) is not None
        ]
        if len(gaps) == len(chosen) > 1:
            error = max(noise * (2 / len(gaps)) ** 0.5, statistics.stdev(gaps) / len(gaps) ** 0.5)
            if statistics.fmean(gaps) <= NEAR * error:
                points[point] = None
    return tuple(point for point in points if point != worse.point)


def standings(
    found: Group,
    outcomes: Mapping[str, Sequence[Outcome]],
    against: str = "",
    looks: tuple[int, ...] = (),
    rates: Mapping[str, RateCurve] | None = None,
    retried: Retried | None = None,
) -> list[Standing]:
    """Judge a group of contestants by the measure they share, against a baseline if that is one of them.

    A point that has not been trained yet, or has no two scores (rates may diverge), is left out.
    """
    named = against if against in found.names else ""
    higher = measure_of(found.measure).higher

    def judged(reference: str, trials: Mapping[str, Sequence[Outcome]]) -> list[Standing]:
        scores = aligned(found.measure, {name: trials[name] for name in found.names})
        return judge(scores, higher=higher, against=reference, looks=looks, picked=not named)

    places = judged(named, outcomes)
    both = {place.name: place for place in places}
    for pair in pairs(places, rates or {}):
        name = pair.row(named)
        for point in pair.points:
            trials = (retried or {}).get((pair.worse, point), ())
            scores = scores_of(trials, found.measure).values()
            if len(scores) > 1:
                again = judged(named or pair.better, {**outcomes, pair.worse: trials})
                at_point = next(place for place in again if place.name == name)
                both[name] = _hull(both[name], at_point, pair.worse, point, statistics.fmean(scores))
    return [both[place.name] for place in places]


def _hull(own: Standing, again: Standing, worse: str, point: RatePoint, score: float) -> Standing:
    """Return the standing that both comparisons allow."""
    known = (own.low, own.high, own.p, again.low, again.high, again.p, again.difference)
    low, high, p, again_low, again_high, again_p, difference = (value for value in known if value is not None)
    retrial = Retrial(worse, point[0], dict(point[1]), score, difference, again_low, again_high)
    return dataclasses.replace(
        own,
        low=min(low, again_low),
        high=max(high, again_high),
        p=max(p, again_p),
        verdict=own.verdict if again.verdict == own.verdict else OPEN,
        retrials=(*own.retrials, retrial),
    )
