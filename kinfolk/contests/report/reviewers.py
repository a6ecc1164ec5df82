"""The card for reviewers: every trial including failed ones, hashes of data and code, seeds, and the machine."""

from collections.abc import Sequence

from kinfolk.contests.budget import duration
from kinfolk.contests.comparison import Comparison
from kinfolk.contests.outcome import Outcome
from kinfolk.report.figures import facts, section
from kinfolk.report.html import Html, tag
from kinfolk.report.numbers import amount, memory
from kinfolk.report.tables import Column, Line, table

COLUMNS = (
    Column("contestant", text=True),
    Column("seed"),
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
    trials = [trial for found in comparison.outcomes.values() for trial in found]
    failed = sum(not trial.done for trial in trials)
    known = {
        "trials": f"{len(trials)}, of which {failed} failed",
        "seeds": ", ".join(map(str, sorted({trial.seed for trial in trials}))),
    }
    known |= {name: comparison.facts[name] for name in ("data", "machine", "versions") if name in comparison.facts}
    return section("For reviewers", facts(known), _trials(trials), key="reviewers")


def _trials(trials: Sequence[Outcome]) -> Html:
    rows = [Line(_cells(trial)) for trial in trials]
    many = tag("summary", f"Every trial ({len(trials)})")
    return tag("details", many, table(COLUMNS, rows, small=True), open=len(trials) <= 12)


def _cells(trial: Outcome) -> list[str]:
    return [
        trial.name,
        str(trial.seed),
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
