"""Search for several hyperparameters of a contestant at once: Optuna's TPE, over trials like those of a rate.

Points are drawn in rounds of five by the tree-structured Parzen estimator (Bergstra et al. 2011; Akiba et al. 2019,
arXiv:1907.10902) and tried at half of the budget with a schedule that ends; the best two and the recipe's own go into a
final at the full budget with two further seeds. The recipe's own wins what is within one standard error of the best.

A search is a pure function of what its trials came to: it draws with a seed of its own and learns of outcomes round by
round, in the order in which they were drawn, so asked again after an interruption it orders the same trials.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.contests.evidence import HALF, RatePoint
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.rates import SEEDS, SearchOrder, TwoStageSearch, score_of
from kinfolk.core import paths
from kinfolk.core.errors import MissingExtraError, SpecError
from kinfolk.family.recipe import Recipe

PATHS = {
    "lr": "training.optimiser.lr",
    "weight_decay": "training.optimiser.weight_decay",
    "dropout": "model.dropout",
    "clip": "training.clip",
}
BOUNDS: dict[str, tuple[float, float, bool]] = {
    "weight_decay": (1e-3, 0.3, True),
    "dropout": (0.0, 0.3, False),
    "clip": (0.1, 10.0, True),
}
"""Lowest and highest value, and whether their logarithm is searched; a rate's are 9 times below and above its own."""

RANGE, ROUND, ROUNDS_EACH = 9.0, 5, 1
"""Of a rate; trials of a round; rounds for each hyperparameter, besides a first one."""


@dataclasses.dataclass(frozen=True)
class SpaceSearch(TwoStageSearch):
    """The search of one contestant: `names` of the hyperparameters that it has, `own` its recipe's rate."""

    own: float
    names: tuple[str, ...]
    measure: str
    higher: bool = False

    def first(self, outcomes: Mapping[SearchOrder, Outcome]) -> list[SearchOrder]:
        """Return all rounds up to the first that has not ended; the recipe's own point comes first."""
        study, drawn = _study(self.higher), [SearchOrder(self.own, HALF, SEEDS[0])]
        from optuna.trial import TrialState

        for _ in range(1 + ROUNDS_EACH * len(self.names)):
            trials = [study.ask(_distributions(self.names, self.own)) for _ in range(ROUND)]
            orders = [self._order(trial.params) for trial in trials]
            drawn += orders
            if any(order not in outcomes for order in orders):
                break
            for trial, order in zip(trials, orders, strict=True):
                score = score_of(outcomes[order], self.measure)
                study.tell(trial, score, TrialState.FAIL if score is None else None)
        return drawn

    def preferred(self, finalists: Sequence[RatePoint]) -> Sequence[RatePoint]:
        """Return the recipe's own point."""
        return [(self.own, ())]

    def _order(self, point: Mapping[str, float]) -> SearchOrder:
        """Return a point as an order, with six digits, so that a name is a number."""
        short = {name: float(f"{value:.6g}") for name, value in point.items()}
        return SearchOrder(short.pop("lr", self.own), HALF, SEEDS[0], tuple(sorted(short.items())))


def available(names: tuple[str, ...], recipe: Recipe) -> tuple[str, ...]:
    """Return the hyperparameters that a recipe has."""
    kept = []
    for name in names:
        try:
            paths.get(recipe, PATHS[name])
        except (SpecError, AttributeError, KeyError):
            continue
        kept.append(name)
    return tuple(kept)


def assigned(recipe: Recipe, others: Mapping[str, float]) -> Recipe:
    """Return a recipe with values of hyperparameters."""
    return recipe.assigned([f"{PATHS[name]}={value!r}" for name, value in others.items()])


def _study(higher: bool) -> Any:
    try:
        import optuna
    except ImportError:
        raise MissingExtraError("tune", "tuning more than one hyperparameter") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler = optuna.samplers.TPESampler(seed=SEEDS[0], n_startup_trials=ROUND, constant_liar=True)
    return optuna.create_study(sampler=sampler, direction="maximize" if higher else "minimize")


def _distributions(names: tuple[str, ...], own: float) -> dict[str, Any]:
    from optuna.distributions import FloatDistribution

    bounds = BOUNDS | {"lr": (own / RANGE, own * RANGE, True)}
    return {name: FloatDistribution(bounds[name][0], bounds[name][1], log=bounds[name][2]) for name in names}
