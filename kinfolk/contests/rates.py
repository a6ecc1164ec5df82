"""Search for a contestant's learning rate: a ladder at half of the budget, then the best two at all of it.

Rates are a factor of 3 apart around the recipe's. Each is tried with a schedule of its own that ends: rankings flip
while a rate decays, so nothing is cut inside a schedule (Wen et al. 2025, arXiv:2509.02046). A best rate at an edge
extends the ladder. The best two and the recipe's own are trained at the full budget with two further seeds: half of a
short schedule prefers higher rates than the whole, and a search must not end with a rate worse than the one it began
with. The smallest of them wins whose paired difference to the best is within one standard error (the one-standard-error
rule of Breiman et al. 1984, section 3.4.3). Seeds of the search never judge.

A search is a pure function of what its trials came to: asked again after an interruption, it orders the same trials.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from kinfolk.contests.evidence import FULL, HALF, RateCurve, RatePoint, RateTried, Spent
from kinfolk.contests.outcome import Outcome

FACTOR = 3.0
LADDER = (-2, -1, 0, 1, 2)
"""Exponents of the factor with which a search begins."""

EXTENSIONS = 3
"""Rates that a ladder may be extended by, on both sides together."""

SEEDS = (1_000_000, 1_000_001, 1_000_002)
"""Of the ladder, and of the two trials of each finalist: none of them judges."""


@dataclasses.dataclass(frozen=True, order=True)
class SearchOrder:
    """One trial of a search: a rate, a share of the budget, a seed, and other hyperparameters, where searched."""

    lr: float
    share: float
    seed: int
    others: tuple[tuple[str, float], ...] = ()

    @property
    def point(self) -> RatePoint:
        """The rate with the other hyperparameters."""
        return self.lr, self.others


class TwoStageSearch:
    """A search in two stages: trials at half of the budget, then the best two and the recipe's own at all of it."""

    own: float
    measure: str
    higher: bool

    def orders(self, outcomes: Mapping[SearchOrder, Outcome]) -> list[SearchOrder]:
        """Return the trials that are needed next, some of which may have ended; none when the search is over.

        All orders of a stage are returned until every one of them has an outcome.
        """
        first = self.first(outcomes)
        if any(order not in outcomes for order in first):
            return first
        final = self._final(self.finalists(first, outcomes))
        return final if any(order not in outcomes for order in final) else []

    def result(self, outcomes: Mapping[SearchOrder, Outcome]) -> RateCurve:
        """Return the choice, and everything that was tried."""
        lr, others = self._choice(outcomes)
        tried: dict[tuple[RatePoint, float], dict[str, float | None]] = {}
        for order in sorted(outcomes):
            losses = tried.setdefault((order.point, order.share), {})
            losses[str(order.seed)] = score_of(outcomes[order], self.measure)
        return RateCurve(
            measure=self.measure,
            own=self.own,
            chosen=lr,
            others=dict(others),
            tried=tuple(
                RateTried(lr=point[0], share=share, losses=losses, others=dict(point[1]))
                for (point, share), losses in tried.items()
            ),
            spent=Spent.by(outcomes.values()),
        )

    def first(self, outcomes: Mapping[SearchOrder, Outcome]) -> list[SearchOrder]:
        """Return the trials at half of the budget, as far as their outcomes tell which they are."""
        raise NotImplementedError

    def preferred(self, finalists: Sequence[RatePoint]) -> Sequence[RatePoint]:
        """Return the points of which the first wins that is within one standard error of the best."""
        return finalists

    def cost(self, order: SearchOrder, outcomes: Mapping[SearchOrder, Outcome]) -> float:
        """Return the score of a trial, less is better; infinite for one that failed or has not ended."""
        score = score_of(outcomes.get(order), self.measure)
        return math.inf if score is None else -score if self.higher else score

    def finalists(self, first: Sequence[SearchOrder], outcomes: Mapping[SearchOrder, Outcome]) -> list[SearchOrder]:
        """Return the recipe's own and the best two, by their trials at half of the budget; fewer where none scored."""
        costs = {order: self.cost(order, outcomes) for order in first}
        ranked = sorted((order for order in first if costs[order] < math.inf), key=lambda order: (costs[order], order))
        return list(dict.fromkeys([*(order for order in ranked if order.point == (self.own, ())), *ranked[:2]]))

    def _final(self, finalists: Sequence[SearchOrder]) -> list[SearchOrder]:
        # one alone needs no final
        seeds = SEEDS[1:] if len(finalists) > 1 else ()
        return [dataclasses.replace(order, share=FULL, seed=seed) for seed in seeds for order in finalists]

    def _choice(self, outcomes: Mapping[SearchOrder, Outcome]) -> RatePoint:
        """Return the point the verdict is on; the recipe's own where none has a score."""
        first = self.first(outcomes)
        finalists = self.finalists(first, outcomes) if all(order in outcomes for order in first) else []
        preferred = self.preferred([order.point for order in finalists])
        costs: dict[RatePoint, list[float]] = {}
        for order in self._final(finalists):
            costs.setdefault(order.point, []).append(self.cost(order, outcomes))
        if not costs:
            return next(iter(preferred), (self.own, ()))
        best = min(costs, key=lambda point: (sum(costs[point]), point))
        finished = [point for point in preferred if point in costs and math.inf not in costs[point]]
        return next((point for point in finished if within_noise(costs[point], costs[best])), best)


@dataclasses.dataclass(frozen=True)
class Search(TwoStageSearch):
    """The search for a rate. `own` is the recipe's, `higher` whether a higher score is better."""

    own: float
    measure: str
    higher: bool = False

    def rate(self, exponent: int) -> float:
        """Return a rate of the ladder; the recipe's own is exact, the others have six digits."""
        return self.own if exponent == 0 else float(f"{self.own * FACTOR**exponent:.6g}")

    def result(self, outcomes: Mapping[SearchOrder, Outcome]) -> RateCurve:
        """Return the choice, everything that was tried, and whether the choice is the last rate on its side."""
        curve, rates = super().result(outcomes), [order.lr for order in self.first(outcomes)]
        if all(score is None for tried in curve.tried for score in tried.losses.values()):
            return curve
        return dataclasses.replace(curve, edge={rates[0]: "lowest", rates[-1]: "highest"}.get(curve.chosen, ""))

    def first(self, outcomes: Mapping[SearchOrder, Outcome]) -> list[SearchOrder]:
        """Return the ladder, extended for as long as its best rate is at an edge and there is an outcome to tell."""
        exponents = list(LADDER)
        while True:
            orders = [SearchOrder(self.rate(e), HALF, SEEDS[0]) for e in exponents]
            if len(exponents) == len(LADDER) + EXTENSIONS or any(order not in outcomes for order in orders):
                return orders
            best = min(orders, key=lambda order: (self.cost(order, outcomes), order))
            if best == orders[0] or self.cost(best, outcomes) == math.inf:
                # where nothing ended with a score, smaller rates are what may
                exponents.insert(0, exponents[0] - 1)
            elif best == orders[-1]:
                exponents.append(exponents[-1] + 1)
            else:
                return orders

    def finalists(self, first: Sequence[SearchOrder], outcomes: Mapping[SearchOrder, Outcome]) -> list[SearchOrder]:
        """Return the finalists, the smallest rate first: it wins among those within one standard error of the best."""
        return sorted(super().finalists(first, outcomes))


def score_of(outcome: Outcome | None, measure: str) -> float | None:
    """Return the score on the validation split; None for a trial that has none."""
    if outcome is None or not outcome.done:
        return None
    return outcome.curve[-1].valid.get(measure)


def within_noise(losses: Sequence[float], best: Sequence[float]) -> bool:
    """Tell whether the mean paired difference of two seeds to the best is at most one standard error."""
    first, second = (loss - least for loss, least in zip(losses, best, strict=True))
    # of two numbers the standard error of the mean is half of their distance
    return (first + second) / 2 <= abs(first - second) / 2
