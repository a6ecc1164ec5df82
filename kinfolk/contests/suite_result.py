"""The result of a suite: accuracy of each contestant on each task, speed and memory of a step at each length."""

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.contests.arena import Arena, average, row_of
from kinfolk.contests.comparison import Comparison
from kinfolk.contests.groups import scores_of
from kinfolk.contests.interquartile import bootstrap
from kinfolk.contests.outcome import DONE, Outcome

MEASURE = "accuracy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteStanding:
    """One contestant: accuracies by task in per cent with their spreads over seeds; steps a second and bytes by length.

    memory: what came on top after the program had started, at its most. `average` only where every task has a score;
    middle: the interquartile mean over all tasks and seeds then, with its interval (`contests.interquartile`).
    published: its row of the published table.
    """

    name: str
    scores: Mapping[str, float]
    spreads: Mapping[str, float]
    average: float | None
    middle: tuple[float, float, float] | None
    speed: Mapping[int, float]
    memory: Mapping[int, float]
    relative_speed: float | None = None
    published: str = ""
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """What came of a suite. `guesses`: the accuracy of always answering the most frequent class."""

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
        origin = self.suite.origin
        return {
            "suite": self.suite.name,
            "tasks": dict(self.suite.tasks),
            "facts": {"command": self.command, **self.facts},
            "guesses": dict(self.guesses),
            "standings": [dataclasses.asdict(standing) for standing in self.standings],
            "published": {
                "paper": origin.paper,
                "note": origin.note,
                "rows": {name: dict(zip(origin.columns, scores, strict=True)) for name, scores in origin.rows.items()},
            },
        }

    def to_csv(self) -> str:
        """Write one line for each contestant."""
        lengths = self.suite.lengths
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        costs = [f"{what} {n}" for what in ("steps/s", "bytes") for n in lengths]
        middle = ["interquartile mean", "low", "high"]
        out.writerow(["contestant", *self.suite.tasks, "average", *middle, *costs, "published row"])
        for s in self.standings:
            scores = [s.scores.get(task, "") for task in self.suite.tasks]
            out.writerow(
                [s.name, *scores, "" if s.average is None else s.average, *(s.middle or ("",) * 3)]
                + [found.get(n, "") for found in (s.speed, s.memory) for n in lengths]
                + [s.published]
            )
        return text.getvalue()

    def _standing(self, name: str, speed: dict[int, float], first: dict[int, float]) -> SuiteStanding:
        judged: dict[str, list[float]] = {}
        notes: list[str] = []
        for task, found in self.comparisons.items():
            done = [100 * score for score in scores_of(found.outcomes.get(name, ()), MEASURE).values()]
            judged |= {task: done} if done else {}
            row = next((row for row in found.rows if row.name == name), None)
            notes += [f"{task}: {row.note}"] if row is not None and row.note else []
        used = {n: self.paces[n][name] for n in self.paces if name in self.paces[n]}
        common = [n for n in speed if n in first]
        ratios = [math.log(speed[n] / first[n]) for n in common]
        scores = {task: statistics.fmean(done) for task, done in judged.items()}
        whole = len(scores) == len(self.suite.tasks)
        return SuiteStanding(
            name=name,
            scores=scores,
            spreads={task: statistics.stdev(done) if len(done) > 1 else 0.0 for task, done in judged.items()},
            average=_mean(scores) if whole else None,
            middle=bootstrap(list(judged.values())) if whole else None,
            speed=speed,
            memory={n: o.growth_bytes for n, o in used.items() if n in speed},
            relative_speed=math.exp(statistics.fmean(ratios)) if ratios else None,
            published=row_of(name) if self.suite.origin.rows else "",
            notes=tuple(notes),
        )

    def _speed(self, name: str) -> dict[int, float]:
        timed = {n: outcomes[name] for n, outcomes in self.paces.items() if name in outcomes}
        return {n: o.steps / o.seconds for n, o in timed.items() if o.status == DONE and o.seconds > 0}


def _mean(scores: Mapping[str, float]) -> float:
    return average(tuple(scores.values())) if scores else -math.inf
