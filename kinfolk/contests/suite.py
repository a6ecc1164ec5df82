"""Several comparisons with one report: relatives by tasks, and what a step costs them as texts get longer.

Every task is a comparison of its own in a folder of its own, so whatever is true of those is true here: the same
command goes on where it was stopped, and seeds or contestants can be added.
"""

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from kinfolk.contests.arena import COLUMNS, FIRST, NOT_COMPARABLE, PAPER, PUBLISHED, Arena, arena, average, row_of
from kinfolk.contests.comparison import Comparison
from kinfolk.contests.outcome import DONE, Outcome, write_json
from kinfolk.contests.run import pace, run
from kinfolk.contests.settings import Settings
from kinfolk.core.console import Console
from kinfolk.core.errors import SpecError
from kinfolk.data import Data, open_data
from kinfolk.train import durable

MEASURE = "accuracy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
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
    def standings(self) -> list[Standing]:
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

    def write(self) -> Path:
        """Write `results.json`, `results.csv` and `report.html`; return the path of the report."""
        from kinfolk.contests.report.suite import render

        write_json(self.folder / "results.json", self.to_plain())
        durable.write(self.folder / "results.csv", self.to_csv())
        durable.write(self.folder / "report.html", render(self))
        return self.folder / "report.html"

    def _standing(self, name: str, speed: dict[int, float], first: dict[int, float]) -> Standing:
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
        return Standing(
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


def run_suite(name: str, settings: Settings, command: str = "", console: Console | None = None) -> SuiteResult:
    """Run every task and measure every length; write the results into the folder, and return them."""
    asked, console = arena(name), console or Console(stderr=True)
    if settings.table or settings.data != Settings().data:
        raise SpecError(f"suite {name!r} has data of its own, and no published table's rows")
    folder = settings.folder if settings.out else settings.folder.with_name(f"{name}-{settings.folder.name[8:]}")
    own = (f"training.eval_batches={_batches(asked, settings)}",)
    settings = dataclasses.replace(
        settings, contestants=settings.contestants or FIRST, assignments=own + settings.assignments
    )
    comparisons, paces, guesses = {}, {}, {}
    for task, data in asked.tasks.items():
        console.print(f"{task}: {data}", markup=False, highlight=False)
        guesses[task] = 100 * majority(open_data(data), asked.valid)
        comparisons[task] = run(dataclasses.replace(settings, data=data, out=folder / task), command, console)
    for n in asked.lengths:
        console.print(f"steps a second and memory at {n:,} tokens", markup=False, highlight=False)
        # a text and its end; one at a time, so that nobody is slowed down by a neighbour
        alone = dataclasses.replace(
            settings,
            data=f"text:length={n - 1}",
            out=folder / f"length-{n}",
            assignments=(*settings.assignments, f"training.batch_size={asked.rows}"),
            jobs=1,
        )
        paces[n] = pace(alone, console)
    result = SuiteResult(
        suite=asked, folder=folder, command=command, comparisons=comparisons, paces=paces, guesses=guesses
    )
    result.write()
    return result


def majority(data: Data, n: int) -> float:
    """Return how often the most frequent class is right on the first examples of valid."""
    split = cast(Any, data.split("valid"))
    labels = [label for *_, label in split.examples(np.arange(min(n, len(split))))]
    return max(np.bincount(labels)) / len(labels)


def _batches(asked: Arena, settings: Settings) -> int:
    """Return how many batches a validation takes, with the batch size that the first contestant will have."""
    from kinfolk.contests.contestants import gather

    first = gather(settings.contestants or FIRST, settings.size, settings.assignments)[0]
    return max(1, asked.valid // first.recipe(263).training.batch_size)


def _scored(outcome: Outcome) -> bool:
    return outcome.done and MEASURE in outcome.curve[-1].valid


def _mean(scores: Mapping[str, float]) -> float:
    return average(tuple(scores.values())) if scores else -math.inf


def _or_nothing(value: float | None) -> Any:
    return "" if value is None else value
