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
from kinfolk.contests.scaling.ladder import RUNGS, TOKENS, Rung, body_params
from kinfolk.contests.scaling.ladder import amounts as read_amounts
from kinfolk.contests.scaling.ladder import rungs as read_rungs
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
class Trained(Measured):
    """One trial."""

    rung: str
    seed: int
    flops: float
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

    def predicted(self, sizes: Sequence[float], flops: float | None = None) -> dict[str, Any]:
        """Return the loss at other sizes on the most tokens that were read, and the best size for a number of FLOPs."""
        tokens = max(trial.tokens for trial in self.trials)
        at = [self._prediction(params, tokens) for params in sizes]
        return {
            "predicted": at,
            "best": {"flops": flops} | self._prediction(*self.law.best_size(flops)) if flops else {},
        }

    def _prediction(self, params: float, tokens: float) -> dict[str, Any]:
        return {"params": params, "tokens": tokens, **dataclasses.asdict(self.law.at(params=params, tokens=tokens))}

    def write(self) -> Path:
        """Write the numbers and the chart; return the path of the chart."""
        write_json(self.folder / RESULT, self.plain())
        title = f"{self.relative} on {self.data}"
        durable.write(self.folder / PICTURE, charts_file(title, charts(self.trials, self.law)))
        return self.folder / PICTURE


def scale(
    relative: str,
    data: str | Path = "stdlib",
    *,
    rungs: str = RUNGS,
    tokens: str = TOKENS,
    seeds: int = 1,
    command: str = "",
    console: Console | None = None,
    **more: Any,
) -> ScalingStudy:
    """Train what is missing of a ladder of sizes and amounts of tokens, and fit the law; `kin scale`.

    Every pair is trained with every seed, as it is: nothing is tuned or matched. `more` are other fields of `Settings`.
    """
    console = console or Console(stderr=True)
    ladder, amounts = read_rungs(rungs), read_amounts(tokens)
    table = "\n".join(_contestant(rung, relative) for rung in ladder)
    settings = _settings(f"{relative} {rungs} {tokens}", amounts[0], data=str(data), seeds=seeds, **more)
    folder = settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    durable.write(folder / LADDER, table)
    trials: list[Trained] = []
    notes: list[str] = []
    for i, n in enumerate(amounts):
        console.print(f"{amount(n)} tokens ({i + 1} of {len(amounts)})", highlight=False)
        part = dataclasses.replace(
            settings,
            contestants=(str(folder / LADDER),),
            budget=f"{n:.0f}-tokens",
            out=folder / f"{n:.0f}-tokens",
        )
        result = comparing.run(part, command, console)
        trials += _trials(result)
        notes += [f"{amount(n)} tokens, {row.name}: {row.note}" for row in result.rows if row.failed]
    if not trials:
        raise TrainingError(f"no trial of the ladder finished; see {folder}")
    if len({trial.measure for trial in trials}) > 1:
        raise DataError("rungs of the ladder were scored by different measures; no law goes through them")
    notes += _repetition(settings, max(amounts))
    study = ScalingStudy(relative, settings.data, tuple(trials), fit(trials), tuple(notes), folder)
    study.write()
    return study


def _settings(question: str, least: float, **fields: Any) -> Settings:
    """Return settings whose folder is named after the question, and whose budget is counted in tokens."""
    where = {name: fields.pop(name) for name in ("on", "per_trial") if name in fields}
    settings = Settings(contestants=(question,), tune="off", match="none", **fields)
    out = settings.out or settings.folder.with_name(settings.folder.name.replace("compare", "scale"))
    return dataclasses.replace(settings, out=out, budget=f"{least:.0f}-tokens", **where)


def _contestant(rung: Rung, relative: str) -> str:
    """Write a rung as an entry of a table of contestants."""
    numbers = "".join(f"{name} = {value}\n" for name, value in rung.numbers(relative).items())
    return f'[contestants."{rung.name}"]\nrelative = "{relative}"\n{numbers}'


def _trials(result: Comparison) -> list[Trained]:
    measures = {row.name: row.measure for row in result.rows}
    return [
        Trained(
            rung=card.name,
            seed=outcome.seed,
            params=body_params(loads(Recipe, card.spec).model),
            tokens=outcome.tokens,
            flops=outcome.flops,
            loss=outcome.curve[-1].valid[measures[card.name]],
            measure=measures[card.name],
        )
        for card in result.cards
        for outcome in result.outcomes.get(card.name, ())
        if outcome.done
    ]


def _repetition(settings: Settings, most: float) -> list[str]:
    """Warn where a text is read more than once: what is repeated teaches less (Muennighoff et al. 2023)."""
    there = open_data(**settings.source).split("train").n_tokens
    if most <= there:
        return []
    return [f"{amount(most)} tokens read a text of {amount(there)} {most / there:.1f} times; a law assumes new text"]


def means(trials: Sequence[Trained]) -> dict[tuple[str, float], float]:
    """Return the mean loss over seeds of every rung and amount of tokens."""
    cells: dict[tuple[str, float], list[float]] = {}
    for trial in trials:
        cells.setdefault((trial.rung, trial.tokens), []).append(trial.loss)
    return {cell: statistics.fmean(losses) for cell, losses in cells.items()}
