"""Train the ladder, fit the law, and keep both: what `kin scale` does."""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.contests import run as comparing
from kinfolk.contests.budget import amount
from kinfolk.contests.comparison import Comparison
from kinfolk.contests.outcome import write_json
from kinfolk.contests.scaling.ladder import Rung, body_params
from kinfolk.contests.scaling.law import Law, Measured, fit
from kinfolk.contests.scaling.picture import charts
from kinfolk.contests.settings import Settings
from kinfolk.core.console import Console
from kinfolk.core.errors import DataError, TrainingError
from kinfolk.core.plain import loads
from kinfolk.data import open_data
from kinfolk.family.recipe import Recipe
from kinfolk.report.charts import file as charts_file
from kinfolk.runs import durable

RESULT, PICTURE, LADDER = "scaling.json", "scaling.svg", "ladder.toml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What a study is about. Every pair of a rung and an amount of tokens is trained `settings.seeds` times."""

    relative: str
    rungs: tuple[Rung, ...]
    tokens: tuple[float, ...]
    settings: Settings

    @property
    def folder(self) -> Path:
        """Where the study lives: the same command finds it again and goes on."""
        return self.settings.folder


@dataclasses.dataclass(frozen=True)
class Trained:
    """One trial."""

    rung: str
    seed: int
    params: int
    tokens: int
    flops: float
    loss: float
    measure: str


@dataclasses.dataclass(frozen=True, eq=False)
class ScalingStudy:
    """The trials and the law through them. notes: what a reader must know besides."""

    relative: str
    data: str
    trials: tuple[Trained, ...]
    law: Law
    notes: tuple[str, ...]
    folder: Path

    def plain(self) -> dict[str, Any]:
        """Return everything as plain data, the content of `scaling.json`."""
        return {
            "relative": self.relative,
            "data": self.data,
            "law": self.law.plain(),
            "trials": [dataclasses.asdict(t) for t in self.trials],
            "notes": list(self.notes),
        }

    def write(self) -> Path:
        """Write the numbers and the picture; return the path of the picture."""
        write_json(self.folder / RESULT, self.plain())
        title = f"{self.relative} on {self.data}"
        durable.write(self.folder / PICTURE, charts_file(title, charts([_point(t) for t in self.trials], self.law)))
        return self.folder / PICTURE


def study(asked: Asked, command: str = "", console: Console | None = None) -> ScalingStudy:
    """Train what is missing of the ladder and fit the law; interrupted, the same command goes on."""
    console = console or Console(stderr=True)
    asked.folder.mkdir(parents=True, exist_ok=True)
    file = asked.folder / LADDER
    durable.write(file, _table(asked))
    trials: list[Trained] = []
    notes: list[str] = []
    for i, tokens in enumerate(asked.tokens):
        console.print(f"{amount(tokens)} tokens ({i + 1} of {len(asked.tokens)})", highlight=False)
        settings = dataclasses.replace(
            asked.settings,
            contestants=(str(file),),
            budget=f"{tokens:.0f}-tokens",
            out=asked.folder / f"{tokens:.0f}-tokens",
        )
        found = comparing.run(settings, command, console)
        trials += _trials(found)
        notes += [f"{amount(tokens)} tokens, {row.name}: {row.note}" for row in found.rows if row.failed]
    if not trials:
        raise TrainingError(f"no trial of the ladder finished; see {asked.folder}")
    notes += _repetition(asked)
    made = ScalingStudy(
        asked.relative, asked.settings.data, tuple(trials), fit(_points(trials)), tuple(notes), asked.folder
    )
    made.write()
    return made


def _table(asked: Asked) -> str:
    """Write the rungs as a table of contestants."""
    lines = []
    for rung in asked.rungs:
        numbers = "".join(f"{name} = {value}\n" for name, value in rung.numbers(asked.relative).items())
        lines.append(f'[contestants."{rung.name}"]\nrelative = "{asked.relative}"\n{numbers}')
    return "\n".join(lines)


def _trials(found: Comparison) -> list[Trained]:
    measures = {row.name: row.measure for row in found.rows}
    made = []
    for card in found.cards:
        for outcome in found.outcomes.get(card.name, ()):
            if outcome.done:
                measure = measures[card.name]
                params = body_params(loads(Recipe, card.spec).model)
                loss = outcome.curve[-1].valid[measure]
                made.append(Trained(card.name, outcome.seed, params, outcome.tokens, outcome.flops, loss, measure))
    return made


def _repetition(asked: Asked) -> list[str]:
    """Warn where a text is read more than once: what is repeated teaches less (Muennighoff et al. 2023)."""
    settings = asked.settings
    data = open_data(settings.data, cache=settings.cache, tokenizer=settings.tokenizer, vocab=settings.vocab)
    there = data.split("train").n_tokens
    most = max(asked.tokens)
    if most <= there:
        return []
    return [f"{amount(most)} tokens read a text of {amount(there)} {most / there:.1f} times; a law assumes new text"]


def _points(trials: Sequence[Trained]) -> list[Measured]:
    if len({trial.measure for trial in trials}) > 1:
        raise DataError("rungs of the ladder were scored by different measures; no law goes through them")
    return [_point(trial) for trial in trials]


def _point(trial: Trained) -> Measured:
    return Measured(float(trial.params), float(trial.tokens), trial.loss)


def means(trials: Sequence[Trained]) -> dict[tuple[str, int], float]:
    """Return the mean loss over seeds of every rung and amount of tokens."""
    cells: dict[tuple[str, int], list[float]] = {}
    for trial in trials:
        cells.setdefault((trial.rung, trial.tokens), []).append(trial.loss)
    return {cell: statistics.fmean(losses) for cell, losses in cells.items()}
