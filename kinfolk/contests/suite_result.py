"""The result of a suite: accuracy of each contestant on each task, speed and memory of a step at each length."""

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.contests.arena import COLUMNS, NOT_COMPARABLE, PAPER, PUBLISHED, Arena, average, row_of
from kinfolk.contests.comparison import Comparison
from kinfolk.contests.outcome import DONE, Outcome

MEASURE = "accuracy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteStanding:
    """One contestant: accuracies by task in per cent with their spreads over seeds; steps a second and bytes by length.

    memory: what came on top after the program had started, at its most. `average` only where every task has a score.
    published: the row of the published table that it stands for.
    """

    name: str
    scores: Mapping[str, float]
    spreads: Mapping[str, float]
    average: float | None
    speed: Mapping[int, float]
    memory: Mapping[int, float]
    relative_speed: float | None = None
    published: str = ""
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """What came of a suite. `guesses`: the accuracy of whoever always says the most frequent class."""

    suite: Arena
    folder: Path
    command: str
    comparisons: Mapping[str, Comparison]
    paces: Mapping[int, Mapping[str, Outcome]]
    guesses: Mapping[str, float]

    @property
    def standings(self) -> list[SuiteStanding]:
        """One of each contestant, the highest average first."""
        names = list(dict.fromkeys(card.name for found in self.comparisons.values() for card in found.cards))
        speeds = {name: self._speed(name) for name in names}
        found = [self._standing(name, speeds[name], speeds[names[0]]) for name in names]
        return sorted(found, key=lambda s: (-len(s.scores), -_mean(s.scores)))

    @property
    def facts(self) -> Mapping[str, str]:
        """How it was run: what all its comparisons share."""
        first = next(iter(self.comparisons.values())).facts
        shared = ("budget", "match", "seeds", "made", "precision", "side by side", "machine", "versions")
        return {name: first[name] for name in shared if name in first}

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain data, the content of `results.json`."""
        return {
            "suite": self.suite.name,
            "tasks": dict(self.suite.tasks),
            "facts": {"command": self.command, **self.facts},
            "guesses": dict(self.guesses),
            "standings": [dataclasses.asdict(standing) for standing in self.standings],
            "published": {
                "paper": PAPER,
                "note": NOT_COMPARABLE,
                "rows": {name: dict(zip(COLUMNS, scores, strict=True)) for name, scores in PUBLISHED.items()},
            },
        }

    def to_csv(self) -> str:
        """Write one line for each contestant."""
        lengths = self.suite.lengths
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        costs = [f"{what} {n}" for what in ("steps/s", "bytes") for n in lengths]
        out.writerow(["contestant", *self.suite.tasks, "average", *costs, "published row"])
        for s in self.standings:
            scores = [s.scores.get(task, "") for task in self.suite.tasks]
            out.writerow(
                [s.name, *scores, _or_nothing(s.average)]
                + [found.get(n, "") for found in (s.speed, s.memory) for n in lengths]
                + [s.published]
            )
        return text.getvalue()

    def _standing(self, name: str, speed: dict[int, float], first: dict[int, float]) -> SuiteStanding:
        scores, spreads, notes = {}, {}, []
        for task, found in self.comparisons.items():
            done = [100 * o.curve[-1].valid[MEASURE] for o in found.outcomes.get(name, ()) if _scored(o)]
            if done:
                scores[task], spreads[task] = statistics.fmean(done), statistics.stdev(done) if len(done) > 1 else 0.0
            row = next((row for row in found.rows if row.name == name), None)
            notes += [f"{task}: {row.note}"] if row is not None and row.note else []
        used = {n: self.paces[n][name] for n in self.paces if name in self.paces[n]}
        common = [n for n in speed if n in first]
        ratios = [math.log(speed[n] / first[n]) for n in common]
        return SuiteStanding(
            name=name,
            scores=scores,
            spreads=spreads,
            average=_mean(scores) if len(scores) == len(self.suite.tasks) else None,
            speed=speed,
            memory={n: o.growth_bytes for n, o in used.items() if n in speed},
            relative_speed=math.exp(statistics.fmean(ratios)) if ratios else None,
            published=row_of(name),
            notes=tuple(notes),
        )

    def _speed(self, name: str) -> dict[int, float]:
        found = {n: outcomes[name] for n, outcomes in self.paces.items() if name in outcomes}
        return {n: o.steps / o.seconds for n, o in found.items() if o.status == DONE and o.seconds > 0}


def _scored(outcome: Outcome) -> bool:
    return outcome.done and MEASURE in outcome.curve[-1].valid


def _mean(scores: Mapping[str, float]) -> float:
    return average(tuple(scores.values())) if scores else -math.inf


def _or_nothing(value: float | None) -> Any:
    return "" if value is None else value
