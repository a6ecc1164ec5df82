"""A comparison as a whole: who took part, how it was run, and what came of it. What `kf.compare` returns."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.contests.evidence import Battery, Branch, Protocol, RateCurve, SeedLimits, Sizes
from kinfolk.contests.flags import epochs, flags
from kinfolk.contests.groups import scores_of
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.published import Beside, beside
from kinfolk.contests.results import ResultRow, interval_of, limits, rows
from kinfolk.contests.retrials import Retried
from kinfolk.contests.speedup import finished, law_of, speedup
from kinfolk.family.tables import table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """Who a contestant is, known before any trial.

    changes: in its own words, what it changes against `parent`; differences: the same, read from the two specs
    as (path, the parent's value, its own value); matched: what `--match` did to it.
    flops_per_token counts the forward pass, train_flops_per_token the backward pass as well.
    problem: why it could not be planned; such a contestant has no trials.
    """

    name: str
    parent: str = ""
    year: int = 0
    paper: str = ""
    changes: str = ""
    differences: tuple[tuple[str, str, str], ...] = ()
    matched: str = ""
    spec: str = ""
    steps: int = 0
    params: int = 0
    core_params: int = 0
    flops_per_token: float = 0.0
    train_flops_per_token: float = 0.0
    problem: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Contestants, their outcomes by name, and the facts of the run (command, budget, data, versions, machine).

    outcomes: the trials that the verdict is on; as_is: those at the recipes' own rates, where rates were tuned;
    searched: those of the search for rates, by contestant; retried: those at further rates, by contestant and rate. All
    have their contestant's name.
    protocol: how contestants were matched, tuned, judged. rates, branches, battery: by contestant; sizes: the same
    comparison at several sizes; train_tokens: of the training split. See `kinfolk.contests.evidence`; all may be empty.
    table: the published table whose rows the contestants are; unavailable: rows that could not be run, and why.
    """

    folder: Path
    title: str
    facts: Mapping[str, str]
    cards: tuple[Card, ...]
    outcomes: Mapping[str, tuple[Outcome, ...]]
    table: str = ""
    unavailable: tuple[tuple[str, str], ...] = ()
    protocol: Protocol = dataclasses.field(default_factory=Protocol)
    as_is: Mapping[str, tuple[Outcome, ...]] = dataclasses.field(default_factory=dict)
    searched: Mapping[str, tuple[Outcome, ...]] = dataclasses.field(default_factory=dict)
    retried: Retried = dataclasses.field(default_factory=dict)
    rates: Mapping[str, RateCurve] = dataclasses.field(default_factory=dict)
    branches: Mapping[str, tuple[Branch, ...]] = dataclasses.field(default_factory=dict)
    battery: Mapping[str, Battery] = dataclasses.field(default_factory=dict)
    sizes: Sizes | None = None
    train_tokens: int = 0

    @functools.cached_property
    def rows(self) -> list[ResultRow]:
        """The table: one row per contestant, best first within each measure."""
        costs = {card.name: (card.params, card.flops_per_token) for card in self.cards}
        outcomes = {card.name: self.outcomes.get(card.name, ()) for card in self.cards}
        table = rows(outcomes, costs, self.protocol.against, self.protocol.looks, self.rates, self.retried)
        cards = {card.name: card for card in self.cards}
        return self._with_speedup([self._completed(row, cards[row.name]) for row in table])

    def _with_speedup(self, table: list[ResultRow]) -> list[ResultRow]:
        """Add effective speed-ups against the named baseline, or else the first contestant, by its own law."""
        name = self.protocol.against or (self.cards[0].name if self.cards else "")
        baseline = next((row for row in table if row.name == name), None)
        law = None if baseline is None else law_of(finished(baseline))
        if baseline is None or law is None:
            return table
        return [dataclasses.replace(row, speedup=speedup(row, baseline, law)) for row in table]

    @property
    def limits(self) -> list[SeedLimits]:
        """What the seeds can and cannot show, for each measure."""
        return limits(self.rows)

    def _completed(self, row: ResultRow, card: Card) -> ResultRow:
        """Add what is known besides the trials that are ranked."""
        own = list(scores_of(self.as_is.get(row.name, ()), row.measure).values())
        around = interval_of(own) or (None, None)
        rates = self.rates.get(row.name)
        return dataclasses.replace(
            row,
            note="; ".join(filter(None, (card.problem, card.matched, row.note))),
            core_params=card.core_params,
            as_is=sum(own) / len(own) if own else None,
            as_is_low=around[0],
            as_is_high=around[1],
            lr=rates.chosen if rates else None,
            rates=rates,
            epochs=epochs(self.outcomes.get(row.name, ()), self.train_tokens),
            flags=tuple(flags(row.name, row.measure, self.outcomes, rates, row.retrials, self.as_is.get(row.name, ()))),
            branches=self.branches.get(row.name, ()),
            battery=self.battery.get(row.name),
        )

    @property
    def best(self) -> str | None:
        """Name of the first contestant of the largest group, or None when no trial finished."""
        return next((row.name for row in self.rows if row.rank == 1), None)

    @property
    def beside(self) -> Beside | None:
        """Ours beside the published figures, where the contestants are rows of a table."""
        if not self.table:
            return None
        return beside(table(self.table), self.rows, self.outcomes, self.unavailable)

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain data, the content of `results.json`."""
        published = self.beside
        return {
            "title": self.title,
            "facts": dict(self.facts),
            "protocol": dataclasses.asdict(self.protocol),
            "rows": [row.to_plain() for row in self.rows],
            "limits": [dataclasses.asdict(found) for found in self.limits],
            "contestants": [dataclasses.asdict(card) for card in self.cards],
            "trials": [dataclasses.asdict(o) for trials in self.outcomes.values() for o in trials],
            "as_is": [dataclasses.asdict(o) for trials in self.as_is.values() for o in trials],
            "searched": [dataclasses.asdict(o) for trials in self.searched.values() for o in trials],
            "retried": [dataclasses.asdict(o) for trials in self.retried.values() for o in trials],
            "sizes": None if self.sizes is None else dataclasses.asdict(self.sizes),
        } | ({"published": dataclasses.asdict(published)} if published else {})
