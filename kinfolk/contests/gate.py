"""The gate: is a candidate better than a baseline, worse, or not decided? One answer for a script.

The protocol is that of every comparison: matched sizes, rates tuned for both, paired seeds, held-out data, the worse
one judged again at every rate that may be its best, more seeds while the answer is open, and an error rate of 5 % over
all looks. So a change of seed is called an improvement in at most 5 % of all gates, half of that for "better" alone.
"""

import dataclasses
from typing import Any

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.inference import LEVEL
from kinfolk.contests.outcome import DIVERGED
from kinfolk.contests.results import ResultRow
from kinfolk.contests.run import run
from kinfolk.contests.settings import Settings
from kinfolk.core.console import Console
from kinfolk.core.errors import SpecError, TrainingError
from kinfolk.objectives.measures.measure import measure_of

BASELINE, CANDIDATE = "baseline", "candidate"
BETTER, WORSE, OPEN = "better", "worse", "not decided"
CODES = {BETTER: 0, WORSE: 1, OPEN: 3}
"""Exit codes; 2 is a command that cannot be carried out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateAnswer:
    """What a gate says.

    difference, low, high: the candidate's score minus the baseline's, in the measure's own unit, with the simultaneous
    interval; None where there is none. reason: in words. higher: whether a higher score is better.
    """

    answer: str
    reason: str
    measure: str
    higher: bool
    level: float
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    seeds: int
    baseline: dict[str, Any]
    candidate: dict[str, Any]
    folder: str

    @property
    def code(self) -> int:
        """The exit code that a script sees."""
        return CODES[self.answer]


def gate(settings: Settings, command: str = "", console: Console | None = None) -> GateAnswer:
    """Compare two contestants, the baseline first, and say which of three answers the evidence allows."""
    if len(settings.contestants) != 2:
        raise SpecError(f"a gate has a baseline and a candidate, found {len(settings.contestants)} contestants")
    settings = dataclasses.replace(settings, labels=(BASELINE, CANDIDATE), against=BASELINE)
    result = run(settings, command, console)
    return answer(result, settings.contestants)


def answer(result: Comparison, names: tuple[str, ...]) -> GateAnswer:
    """Read the answer from a comparison with the baseline."""
    rows = {row.name: row for row in result.rows}
    baseline, candidate = rows[BASELINE], rows[CANDIDATE]
    if baseline.final is None:
        raise TrainingError(f"the baseline has no result: {baseline.note}")
    higher = measure_of(baseline.measure).higher
    # of the intervals of a comparison positive is worse
    gap = [None if x is None else -x if higher else x for x in (candidate.difference, candidate.low, candidate.high)]
    low, high = sorted(gap[1:], key=lambda x: (x is None, x))
    verdict, reason = _read(result, baseline, candidate)
    return GateAnswer(
        answer=verdict,
        reason=reason,
        measure=baseline.measure,
        higher=higher,
        level=LEVEL,
        difference=gap[0],
        low=low,
        high=high,
        p=candidate.p,
        seeds=candidate.seeds,
        baseline=_plain(names[0], baseline),
        candidate=_plain(names[1], candidate),
        folder=str(result.folder),
    )


def _read(result: Comparison, baseline: ResultRow, candidate: ResultRow) -> tuple[str, str]:
    if candidate.final is None:
        trials = result.outcomes[CANDIDATE]
        if trials and all(trial.status == DIVERGED for trial in trials):
            return WORSE, f"every trial of the candidate diverged: {candidate.note}"
        return OPEN, f"the candidate has no result: {candidate.note}"
    if candidate.measure != baseline.measure:
        return OPEN, f"the two share no measure: {baseline.measure} and {candidate.measure}"
    if candidate.p is None or candidate.low is None or candidate.high is None:
        return OPEN, "with one seed there is no test"
    interval = f"{candidate.difference:+.4g} [{candidate.low:+.4g}, {candidate.high:+.4g}], positive is worse"
    if candidate.low > 0:
        return WORSE, f"the interval of the difference is above 0: {interval}"
    if candidate.high < 0:
        return BETTER, f"the interval of the difference is below 0: {interval}"
    rates_open = [
        f"at a rate of {again.lr:.3g} the {again.name} has {again.score:.4g}"
        for again in candidate.retrials
        if again.open
    ]
    rates = f"; told apart by the choice of a rate only: {', '.join(rates_open)}" if rates_open else ""
    return OPEN, f"the interval of the difference contains 0: {interval}{rates}"


def _plain(name: str, row: ResultRow) -> dict[str, Any]:
    fields = ("final", "final_low", "final_high", "as_is", "lr", "params", "core_params", "tokens_per_second", "seeds")
    return {"name": name} | {field: getattr(row, field) for field in fields} | {"note": row.note}
