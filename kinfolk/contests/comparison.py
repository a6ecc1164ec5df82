"""A comparison as a whole: who took part, how it was run, and what came of it. What `kf.compare` returns."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.contests.outcome import Outcome
from kinfolk.contests.published import Beside, beside
from kinfolk.contests.results import Row, rows
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
    flops_per_token: float = 0.0
    train_flops_per_token: float = 0.0
    problem: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Contestants, their outcomes by name, and the facts of the run (command, budget, data, versions, machine).

    table: the published table whose rows the contestants are; unavailable: rows that could not be run, and why.
    """

    folder: Path
    title: str
    facts: Mapping[str, str]
    cards: tuple[Card, ...]
    outcomes: Mapping[str, tuple[Outcome, ...]]
    table: str = ""
    unavailable: tuple[tuple[str, str], ...] = ()

    @property
    def rows(self) -> list[Row]:
        """The table: one row per contestant, best first within each measure."""
        costs = {card.name: (card.params, card.flops_per_token) for card in self.cards}
        table = rows({card.name: self.outcomes.get(card.name, ()) for card in self.cards}, costs)
        extra = {card.name: [card.problem, card.matched] for card in self.cards}
        return [dataclasses.replace(row, note="; ".join(filter(None, (*extra[row.name], row.note)))) for row in table]

    @property
    def best(self) -> str | None:
        """Name of the first contestant of the largest group, or None when nobody finished."""
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
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "contestants": [dataclasses.asdict(card) for card in self.cards],
            "trials": [dataclasses.asdict(o) for trials in self.outcomes.values() for o in trials],
        } | ({"published": dataclasses.asdict(published)} if published else {})
