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

from kinfolk.contests.evidence import FULL, HALF, RateCurve, RateTried, Spent
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


@dataclasses.dataclass(frozen=True)
class Search:
    """The search of one contestant. `own` is its recipe's rate, `higher` whether a higher score is better."""

    own: float
    measure: str
    higher: bool = False

    def rate(self, exponent: int) -> float:
        """Return a rate of the ladder; the recipe's own is exact, the others have six digits."""
        return self.own if exponent == 0 else float(f"{self.own * FACTOR**exponent:.6g}")

    def orders(self, outcomes: Mapping[SearchOrder, Outcome]) -> list[SearchOrder]:
        """Return the trials that are needed next, some of which may have ended; none when the search is over.

        All orders of a stage are returned until every one of them has an outcome.
        """
        first = self._ladder_orders(self._exponents(outcomes))
        if any(order not in outcomes for order in first):
            return first
        final = self._final_orders(outcomes)
        return final if any(order not in outcomes for order in final) else []

    def result(self, outcomes: Mapping[SearchOrder, Outcome]) -> RateCurve:
        """Return the choice, and everything that was tried."""
        exponents = self._exponents(outcomes)
        chosen = self._choice(outcomes)
        tried: dict[tuple[float, float], dict[str, float | None]] = {}
        for order in sorted(outcomes):
            tried.setdefault((order.lr, order.share), {})[str(order.seed)] = score_of(outcomes.get(order), self.measure)
        edge = ""
        if any(score is not None for losses in tried.values() for score in losses.values()):
            edge = {self.rate(exponents[0]): "lowest", self.rate(exponents[-1]): "highest"}.get(chosen, "")
        return RateCurve(
            measure=self.measure,
            own=self.own,
            chosen=chosen,
            tried=tuple(RateTried(lr=lr, share=share, losses=losses) for (lr, share), losses in tried.items()),
            edge=edge,
            spent=Spent.by(outcomes.values()),
        )

    def _exponents(self, outcomes: Mapping[SearchOrder, Outcome]) -> list[int]:
        """Return the ladder, extended for as long as its best rate is at an edge and there is an outcome to tell."""
        exponents = list(LADDER)
        while len(exponents) < len(LADDER) + EXTENSIONS:
            if any(order not in outcomes for order in self._ladder_orders(exponents)):
                break
            worth = self._worth(exponents, outcomes)
            best = min(exponents, key=lambda e: (worth[e], e))
            if best == exponents[0] or worth[best] == math.inf:
                # where nothing ended with a score, smaller rates are what may
                exponents.insert(0, exponents[0] - 1)
            elif best == exponents[-1]:
                exponents.append(exponents[-1] + 1)
            else:
                break
        return exponents

    def _ladder_orders(self, exponents: Sequence[int]) -> list[SearchOrder]:
        return [SearchOrder(self.rate(e), HALF, SEEDS[0]) for e in exponents]

    def _worth(self, exponents: Sequence[int], outcomes: Mapping[SearchOrder, Outcome]) -> dict[int, float]:
        """Return what each rate of the ladder is worth, less is better; a trial that failed is worth nothing."""
        scores = {e: score_of(outcomes.get(SearchOrder(self.rate(e), HALF, SEEDS[0])), self.measure) for e in exponents}
        sign = -1 if self.higher else 1
        return {e: math.inf if score is None else sign * score for e, score in scores.items()}

    def _finalists(self, outcomes: Mapping[SearchOrder, Outcome]) -> list[float]:
        """Return the best two rates of the ladder and the recipe's own, the smallest first; fewer where none scored."""
        exponents = self._exponents(outcomes)
        worth = self._worth(exponents, outcomes)
        best = sorted((e for e in exponents if worth[e] < math.inf), key=lambda e: (worth[e], e))[:2]
        own = {0} if worth[0] < math.inf else set()
        return [self.rate(e) for e in sorted({*best, *own})]

    def _final_orders(self, outcomes: Mapping[SearchOrder, Outcome]) -> list[SearchOrder]:
        finalists = self._finalists(outcomes)
        # one alone needs no final
        return [SearchOrder(lr, FULL, seed) for seed in SEEDS[1:] for lr in finalists] if len(finalists) > 1 else []

    def _choice(self, outcomes: Mapping[SearchOrder, Outcome]) -> float:
        """Return the rate the verdict is on; the recipe's own where none has a score."""
        finalists = self._finalists(outcomes)
        if len(finalists) < 2:
            return finalists[0] if finalists else self.own
        sign = -1 if self.higher else 1
        losses: dict[float, list[float]] = {}
        for lr in finalists:
            scores = [score_of(outcomes.get(SearchOrder(lr, FULL, seed)), self.measure) for seed in SEEDS[1:]]
            if None not in scores:
                losses[lr] = [sign * score for score in scores if score is not None]
        if not losses:
            return finalists[0]
        best = min(losses, key=lambda lr: (sum(losses[lr]), lr))
        return next(lr for lr in finalists if lr in losses and within_noise(losses[lr], losses[best]))


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
