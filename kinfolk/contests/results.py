"""From outcomes of trials to rows of a table: one row per contestant, ranked within its group."""

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.contests.evidence import Battery, Branch, RateCurve, SeedLimits, Speedup
from kinfolk.contests.groups import finished, group
from kinfolk.contests.inference import BETTER, LEVEL, OPEN, WORSE, Standing, t_quantile
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.retrials import Retried, standings
from kinfolk.objectives.measures.measure import measure_of

EARLY = 0.1
"""The early loss is that of the first validation after this share of the steps."""

MARKS = {WORSE: "*", OPEN: "≈", BETTER: "+"}
"""Beside a rank: worse than the reference (the first of the group, or a named baseline), not told apart, better."""

NESTED = ("rates", "retrials", "speedup", "branches", "battery")
"""Fields of a row that a CSV cannot hold; `results.json` has them."""

USED = ("tokens_per_second", "steps", "tokens", "seconds", "flops")
"""Fields of trials of which a row has the mean."""

SEQUENTIAL = ("next-token", "continuation", "target-token")
"""Measures that predict a text from what precedes it, so that they are code lengths: bits per byte."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultRow(Standing):
    """One contestant in the table: its standing, and what it took. Means over finished seeds, memory the largest.

    measure: what `early` and `final` are the loss of, in nats per target, or a share of right answers; ranks compare
        within it. core_params: parameters without embedding and output layer, which `--match params` makes equal.
    final, final_low, final_high: the score that is ranked (at the tuned rate, on the split that judges), and the
        interval of its mean over seeds. as_is, …: the same at the recipe's own rate; None where nothing was tuned.
    lr: the learning rate of `final`; rates: how it was chosen. speedup, branches, battery: see
        `kinfolk.contests.evidence`.
    peak_bytes: of the accelerator, where they were trained `on_device`; otherwise of the process.
    growth_bytes: how much of `peak_bytes` came after the program had started: model, optimiser, activations.
    epochs: how often a trial saw the training data.
    seeds, failed: trials with and without a result; cut_short: those with one that the clock ended before their last
        step. flags: what is unusual, in short words (`kinfolk.contests.flags`); note: what a reader must know besides.
    """

    params: int = 0
    core_params: int = 0
    flops_per_token: float = 0.0
    tokens_per_second: float | None = None
    peak_bytes: int | None = None
    growth_bytes: int | None = None
    on_device: bool = False
    steps: float | None = None
    tokens: float | None = None
    seconds: float | None = None
    flops: float | None = None
    measure: str = ""
    early: float | None = None
    bits_per_byte: float | None = None
    final_low: float | None = None
    final_high: float | None = None
    as_is: float | None = None
    as_is_low: float | None = None
    as_is_high: float | None = None
    lr: float | None = None
    epochs: float | None = None
    failed: int = 0
    cut_short: int = 0
    note: str = ""
    flags: tuple[str, ...] = ()
    rates: RateCurve | None = None
    speedup: Speedup | None = None
    branches: tuple[Branch, ...] = ()
    battery: Battery | None = None

    @property
    def mark(self) -> str:
        """The verdict as a sign beside the rank."""
        return MARKS.get(self.verdict, "")

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dataclasses.asdict(self) | {"mark": self.mark}


def rows(
    outcomes: Mapping[str, Sequence[Outcome]],
    costs: Mapping[str, tuple[int, float]],
    against: str = "",
    looks: tuple[int, ...] = (),
    rates: Mapping[str, RateCurve] | None = None,
    retried: Retried | None = None,
) -> list[ResultRow]:
    """Make the table, best first within each group, those without a result last.

    costs: parameters and operations per token of each contestant, as known before any trial.
    against, looks: the named baseline and the numbers of seeds at which verdicts are taken, see `judge`.
    rates, retried: how rates were chosen, and trials at others, see `kinfolk.contests.retrials`.
    """
    groups = group(outcomes)
    places = [
        (place, each.measure) for each in groups for place in standings(each, outcomes, against, looks, rates, retried)
    ]
    scored = {place.name for place, _ in places}
    places += [(Standing(name=name), "") for name in outcomes if name not in scored]
    table = [_row(place, outcomes[place.name], costs[place.name], measure) for place, measure in places]
    first = groups[0].measure if groups else ""
    alone = {each.names[0] for each in groups if len(each.names) == 1}
    return [_set_apart(row, first, row.name in alone) if row.measure not in ("", first) else row for row in table]


def limits(table: Sequence[ResultRow]) -> list[SeedLimits]:
    """Say what the seeds of each group can and cannot show."""
    every = []
    for measure in dict.fromkeys(row.measure for row in table if row.p is not None):
        group = [row for row in table if row.measure == measure and row.noise is not None]
        tested = [row for row in group if row.p is not None]
        reference = next((row.name for row in group if row.p is None), "")
        reach = [(row.high - row.low) / 2 for row in tested if row.high is not None and row.low is not None]
        every.append(
            SeedLimits(
                measure=measure,
                reference=reference,
                seeds=max(row.seeds for row in group),
                noise=statistics.median(row.noise for row in group if row.noise is not None),
                smallest=statistics.median(reach),
                open=tuple((reference, row.name) for row in tested if row.verdict == OPEN),
                needed=_needed(tested),
            )
        )
    return every


def held_against(table: Sequence[ResultRow], measure: str) -> str:
    """Return what the differences of a measure are to, in words: the best, or a named baseline that is not."""
    held = next((row for row in table if row.measure == measure and row.noise is not None and row.p is None), None)
    return "the best" if held is None or held.rank == 1 else held.name


def _needed(tested: Sequence[ResultRow]) -> int | None:
    """Return how many seeds would decide the widest open difference, if it is as large as it seems."""
    waiting = (
        math.ceil(row.seeds * ((row.high - row.low) / 2 / row.difference) ** 2)
        for row in tested
        if row.verdict == OPEN and row.difference and row.high is not None and row.low is not None
    )
    return min(waiting, default=None)


def interval_of(scores: Sequence[float]) -> tuple[float, float] | None:
    """Return the interval of a mean over seeds by Student's t; None with fewer than two."""
    if len(scores) < 2:
        return None
    reach = t_quantile(1 - LEVEL / 2, len(scores) - 1) * statistics.stdev(scores) / math.sqrt(len(scores))
    return statistics.fmean(scores) - reach, statistics.fmean(scores) + reach


def early(outcome: Outcome, measure: str) -> float | None:
    """Return the loss at the first validation after a tenth of the steps."""
    after = (p for p in outcome.curve if p.step >= EARLY * outcome.steps and measure in p.valid)
    return next((p.valid[measure] for p in after), None)


def to_csv(table: Sequence[ResultRow]) -> str:
    """Write rows as CSV, unknown numbers as empty cells."""
    text = io.StringIO()
    columns = [*(f.name for f in dataclasses.fields(ResultRow) if f.name not in NESTED), "mark"]
    out = csv.DictWriter(text, columns, lineterminator="\n")
    out.writeheader()
    out.writerows({k: _cell(getattr(row, k)) for k in columns} for row in table)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else "; ".join(value) if isinstance(value, tuple) else value


def _row(place: Standing, trials: Sequence[Outcome], cost: tuple[int, float], measure: str) -> ResultRow:
    done = finished(trials)
    failed = [trial for trial in trials if not trial.done]
    row = ResultRow(
        **vars(place) | {"seeds": len(done)},
        params=cost[0] or next((trial.params for trial in trials if trial.params), 0),
        flops_per_token=cost[1],
        failed=len(failed),
        cut_short=sum(trial.cut_short for trial in done),
        note="; ".join(filter(None, (_failures(failed), _cut_short(done)))),
        peak_bytes=max((trial.most_bytes for trial in trials), default=0) or None,
        on_device=any(trial.device_bytes for trial in trials),
    )
    if place.final is None:
        return row
    used: dict[str, Any] = {field: statistics.fmean(getattr(trial, field) for trial in done) for field in USED}
    first = [value for trial in done if (value := early(trial, measure)) is not None]
    around = interval_of([trial.scores[measure] for trial in done]) or (None, None)
    return dataclasses.replace(
        row,
        measure=measure,
        early=statistics.fmean(first) if first else None,
        final_low=around[0],
        final_high=around[1],
        bits_per_byte=_bits_per_byte(place.final, done, measure),
        growth_bytes=max(trial.growth_bytes for trial in done),
        **used,
    )


def _bits_per_byte(nats: float, done: Sequence[Outcome], measure: str) -> float | None:
    bytes_per_token = done[0].bytes_per_token
    if measure not in SEQUENTIAL or not bytes_per_token:
        return None
    return nats / math.log(2) / bytes_per_token


def _failures(failed: Sequence[Outcome]) -> str:
    """Say why trials failed, once for all seeds that failed alike."""
    seeds: dict[str, list[str]] = {}
    for trial in failed:
        last = trial.reason.strip().splitlines()[-1] if trial.reason.strip() else "no reason given"
        seeds.setdefault(f"{trial.status}: {last}", []).append(str(trial.seed))
    return "; ".join(f"seed{'s' * (len(who) > 1)} {', '.join(who)} {why}" for why, who in seeds.items())


def _cut_short(done: Sequence[Outcome]) -> str:
    """Say which trials the clock ended early: fewer tokens, a learning rate not yet decayed."""
    cut = [f"seed {trial.seed} at step {trial.steps:,} of {trial.planned_steps:,}" for trial in done if trial.cut_short]
    return f"cut short by the clock: {', '.join(cut)}" if cut else ""


def _set_apart(row: ResultRow, first: str, alone: bool) -> ResultRow:
    """Say that a row is not to be read against those above; one that is alone in its group has no rank at all."""
    note = f"{measure_of(row.measure).title} is not a {measure_of(first).title}: not ranked with the others"
    return dataclasses.replace(row, note="; ".join(filter(None, (row.note, note))), rank=None if alone else row.rank)
