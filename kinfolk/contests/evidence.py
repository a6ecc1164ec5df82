"""Records of a comparison besides its ranking: rates that were tried, budgets, sizes, speed-up, battery, limits.

Plain frozen records, so that a report can draw them and `results.json` can hold them. Losses are in the unit of the
row's measure; an interval is `low` to `high`; None is not known.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Self

from kinfolk.contests.outcome import Outcome

HALF, FULL = 0.5, 1.0
"""Shares of the budget at which learning rates are tried."""

RatePoint = tuple[float, tuple[tuple[str, float], ...]]
"""A learning rate, and further hyperparameters by name, where they were searched."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spent:
    """What a part of a comparison used, all of its trials together, failed ones included."""

    trials: int = 0
    tokens: int = 0
    seconds: float = 0.0
    flops: float = 0.0

    @classmethod
    def by(cls, outcomes: Iterable[Outcome]) -> Self:
        """Add up what trials used."""
        used = list(outcomes)
        return cls(
            trials=len(used),
            tokens=sum(o.tokens for o in used),
            seconds=sum(o.seconds for o in used),
            flops=sum(o.flops for o in used),
        )

    def share(self, part: float) -> "Spent":
        """Return a part of it: what is left where the rest was begun with."""
        return dataclasses.replace(
            self, tokens=round(part * self.tokens), seconds=part * self.seconds, flops=part * self.flops
        )

    def __add__(self, other: "Spent") -> "Spent":
        """Return what both used."""
        return Spent(
            trials=self.trials + other.trials,
            tokens=self.tokens + other.tokens,
            seconds=self.seconds + other.seconds,
            flops=self.flops + other.flops,
        )


def mean_of(losses: Mapping[str, float | None]) -> float | None:
    """Return the mean over seeds; None where any of them failed."""
    values = [value for value in losses.values() if value is not None]
    return sum(values) / len(values) if values and len(values) == len(losses) else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateTried:
    """One learning rate at one share of the budget, with a finished schedule of its own.

    losses: the score on `valid` by seed; None for a trial that diverged or crashed. others: further hyperparameters.
    """

    lr: float
    share: float
    losses: Mapping[str, float | None]
    others: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def point(self) -> RatePoint:
        """The rate with the further hyperparameters."""
        return self.lr, tuple(sorted(self.others.items()))

    @property
    def mean(self) -> float | None:
        """Mean over seeds; None where any of them failed."""
        return mean_of(self.losses)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateCurve:
    """How one contestant's learning rate was chosen: loss against rate, on seeds and a split that do not judge.

    own, chosen: the recipe's rate and the one the verdict is on; others: what else was chosen, where it was searched.
    edge: "lowest" or "highest" where the choice is the last rate that was tried on that side, so that a better one may
    lie beyond; "" elsewhere.
    spent: by the search.
    """

    measure: str
    own: float
    chosen: float
    tried: tuple[RateTried, ...]
    others: Mapping[str, float] = dataclasses.field(default_factory=dict)
    edge: str = ""
    spent: Spent = Spent()

    @property
    def point(self) -> RatePoint:
        """What was chosen."""
        return self.chosen, tuple(sorted(self.others.items()))


@dataclasses.dataclass(frozen=True)
class Retrial:
    """The worse one of a pair, judged again at another rate: see `kinfolk.contests.retrials`.

    name: of the one that was trained with `lr` and `others`; score: its mean there. difference, low, high: of the pair
    then, in the sense of the row.
    """

    name: str
    lr: float
    others: Mapping[str, float]
    score: float
    difference: float
    low: float
    high: float

    @property
    def open(self) -> bool:
        """Whether the pair is not told apart at this rate."""
        return self.low <= 0 <= self.high


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speedup:
    """Effective speed-up against a baseline: 1.2 is "as good as 1.2 times the baseline's budget".

    value = compute ratio (the multiple of the baseline's budget at which its fitted law reaches this loss) times
    speed ratio (tokens per second over the baseline's). low, high: from the interval of the loss difference; None where
    the law cannot say (the loss is below its floor). law: the fitted law in words. extrapolated: whether the compute
    ratio lies beyond the shares that the law was fitted to by more than a factor of 2.
    """

    baseline: str
    value: float | None
    low: float | None
    high: float | None
    compute_ratio: float | None
    speed_ratio: float
    law: str
    extrapolated: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """A finished loss at a share of the budget: a constant rate up to there, then a branch that cools down."""

    share: float
    tokens: float
    flops: float
    losses: Mapping[str, float | None]
    mean: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Battery:
    """What a trained contestant can do besides its loss; empty where it cannot be asked.

    by_position: mean loss on `valid` at positions (end of a range of positions -> loss).
    longer: mean loss at 1, 2 and 4 times the trained length ("1x" -> loss).
    tasks: score by task of a small training of its own (copying, multi-query associative recall, needle), with the
        measure's name ("copy" -> {"exact": 0.9}).
    decoding: positions -> {"tokens_per_second": …, "state_bytes": …}.
    latency: seconds of the first token at the trained length; train_bytes: memory that training took.
    problems: what was asked and could not be done, by name.
    """

    by_position: Mapping[str, float] = dataclasses.field(default_factory=dict)
    longer: Mapping[str, float] = dataclasses.field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    decoding: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    latency: float | None = None
    train_bytes: int | None = None
    problems: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeedLimits:
    """What the seeds of one measure can and cannot show.

    noise: standard deviation between trials of one contestant, without what all share under a seed (the noise floor).
    smallest: the smallest difference to the reference that these seeds tell apart. open: pairs (reference, other) not
    told apart. needed: seeds that would decide the nearest of them, if it is as large as it seems; None: nothing open.
    """

    measure: str
    reference: str
    seeds: int
    noise: float
    smallest: float
    open: tuple[tuple[str, str], ...] = ()
    needed: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where two contestants' fitted laws meet, or that the data cannot say.

    flops: training operations at the crossing, with the interval of refits; None where it is not determined.
    """

    first: str
    second: str
    flops: float | None
    low: float | None
    high: float | None
    says: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """The same comparison at several sizes: ranks, how far they agree, laws and crossings.

    ranks, losses: size -> contestant -> rank or loss. tau: Kendall's tau-b between the ranks of two sizes ("tiny,small"
    -> tau). laws: contestant -> the fitted law as plain data (floor, exponent with intervals), or why there is none.
    """

    ranks: Mapping[str, Mapping[str, int]]
    losses: Mapping[str, Mapping[str, float]]
    tau: Mapping[str, float | None]
    laws: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)
    crossings: tuple[Crossing, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """How contestants were given an equal chance, in words and numbers that a methods section can use.

    tune: what was searched for, or "off"; match: how widths were. judged_on, chosen_on: the split of the verdict and
    that of the rates, in words. against: the named baseline, "" for the best. looks: numbers of seeds at which the
    verdict was, or may be, taken. tuning_seeds, seeds: of the search and of the verdict. costs: by part ("tuning",
    "verdict", "as is", "retrials", "branches").
    """

    tune: str = "off"
    match: str = "none"
    chosen_on: str = ""
    judged_on: str = "valid"
    against: str = ""
    looks: tuple[int, ...] = ()
    level: float = 0.05
    tuning_seeds: tuple[int, ...] = ()
    seeds: tuple[int, ...] = ()
    costs: Mapping[str, Spent] = dataclasses.field(default_factory=dict)
