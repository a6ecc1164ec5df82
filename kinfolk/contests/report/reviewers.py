"""The card for reviewers: every trial including failed ones, hashes of data and code, seeds, and the machine."""

from collections.abc import Mapping, Sequence

from kinfolk.contests.budget import duration
from kinfolk.contests.comparison import Comparison
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.report.rates import search_space
from kinfolk.report.figures import facts, section
from kinfolk.report.html import Html, tag
from kinfolk.report.numbers import amount, memory
from kinfolk.report.tables import Column, TableLine, table

COLUMNS = (
    Column("contestant", text=True),
    Column("seed"),
    Column("rate", "the learning rate of the recipe, before its schedule"),
    Column("ended", "how the trial ended; failed ones are listed as well", text=True),
    Column("steps", "steps done of steps planned"),
    Column("tokens", "tokens read in training"),
    Column("seconds", "time in training steps; validation and start-up do not count"),
    Column("FLOPs", "operations of training, forward and backward, by the cost model"),
    Column("tokens/s"),
    Column("peak", "the most memory of the process, or of the accelerator where there is one"),
    Column("beside", "trials that ran beside this one, on average"),
    Column("hash", "of everything that decides the result: recipe, data, seed, version"),
)


def card(comparison: Comparison) -> Html:
    """Return what somebody who doubts the comparison wants to check."""
    made = comparison.protocol
    parts = {
        "Trials of the verdict": _flat(comparison.outcomes),
        "Trials at the recipes' own rates": _flat(comparison.as_is),
        "Trials at further rates": [trial for found in comparison.retried.values() for trial in found],
        "Trials of the search for rates": _flat(comparison.searched),
    }
    known = {
        "trials": "; ".join(f"{name.lower()}: {_count(trials)}" for name, trials in parts.items() if trials),
        "seeds of the verdict": _seeds(made.seeds or sorted({trial.seed for trial in _flat(comparison.outcomes)})),
        "seeds that selected rates": _seeds(made.tuning_seeds),
        "rates selected on": made.chosen_on,
        "judged on": made.judged_on,
        "looks": _seeds(made.looks),
    }
    known |= {name: comparison.facts.get(name, "") for name in ("data", "machine", "versions")}
    space = search_space(comparison.rates)
    return section(
        "For reviewers",
        facts({name: value for name, value in known.items() if value}),
        tag("h3", "Search space") if space else None,
        space,
        *(_trials(name, trials) for name, trials in parts.items() if trials),
        key="reviewers",
    )


def _flat(outcomes: Mapping[str, Sequence[Outcome]]) -> list[Outcome]:
    return [trial for found in outcomes.values() for trial in found]


def _count(trials: Sequence[Outcome]) -> str:
    failed = sum(not trial.done for trial in trials)
    return f"{len(trials)}, of which {failed} failed"


def _seeds(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _trials(name: str, trials: Sequence[Outcome]) -> Html:
    rows = [TableLine(_cells(trial)) for trial in trials]
    many = tag("summary", f"{name} ({len(trials)})")
    return tag("details", many, table(COLUMNS, rows, small=True), open=len(trials) <= 12)


def _cells(trial: Outcome) -> list[str]:
    return [
        trial.name,
        str(trial.seed),
        "-" if trial.lr is None else f"{trial.lr:.3g}",
        f"{trial.status}, cut short by the clock" if trial.cut_short else trial.status,
        f"{trial.steps:,} of {trial.planned_steps:,}",
        amount(trial.tokens),
        duration(trial.seconds),
        f"{trial.flops:.2e}",
        amount(trial.tokens_per_second),
        memory(trial.most_bytes),
        f"{trial.neighbours:g}",
        trial.key or "-",
    ]
