"""Results beside published ones: ranks, and differences to the baseline, because sizes and data are not the same.

A published loss cannot be compared with one of another size on other data; whether a change helps, and by how much more
than another, can. So each row is held against the baseline of its own side, and the two sides against each other.
"""

import csv
import dataclasses
import io
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence

from kinfolk.contests.groups import aligned
from kinfolk.contests.inference import LEVEL, judge
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.results import ResultRow
from kinfolk.family.tables import Published, Table

HOLDS, FAILS, UNCLEAR, EQUAL = "yes", "no", "unclear", "equal"
"""Whether a published direction holds: it does, it does not, seeds cannot tell, or there was none to hold."""

FEWEST = 3
"""Rows below which an order is no order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A row of both sides. Losses are differences to the baseline, the rest factors of it; None: not known.

    rank, rank_published: by the final loss, among the rows that have both. p: of our difference, corrected.
    """

    name: str
    rank: int | None = None
    rank_published: int | None = None
    final: float | None = None
    final_published: float | None = None
    early: float | None = None
    early_published: float | None = None
    params: float | None = None
    params_published: float | None = None
    ops: float | None = None
    ops_published: float | None = None
    speed: float | None = None
    speed_published: float | None = None
    holds: str = ""
    p: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beside:
    """Lines in the order of the paper, how far the orders agree, and the rows that could not be run.

    correlations: Spearman's of a column with its published one, and over how many rows.
    differs: rows of which more than the size is not what was published.
    """

    title: str
    paper: str
    baseline: str
    lines: tuple[Line, ...]
    correlations: Mapping[str, tuple[float, int]]
    unavailable: tuple[tuple[str, str], ...] = ()
    differs: tuple[tuple[str, str], ...] = ()

    def count(self, holds: str) -> int:
        """Return how many rows ended like this."""
        return sum(line.holds == holds for line in self.lines)

    def sentences(self) -> list[str]:
        """Say what came of it."""
        directed = [line for line in self.lines if line.holds and line.holds != EQUAL]
        lines = [
            f"The published direction of the final loss holds for {self.count(HOLDS)} of {len(directed)} rows, "
            f"fails for {self.count(FAILS)}, and cannot be told for {self.count(UNCLEAR)} "
            f"(simultaneous {1 - LEVEL:.0%} intervals over paired seeds against {self.baseline})."
        ]
        if not directed:
            lines[0] = "No final loss was published for these rows, so there is no direction to hold them to."
        elif all(line.p is None for line in directed):
            lines[0] = (
                f"The published direction of the final loss holds for {self.count(HOLDS)} of {len(directed)} rows and "
                f"fails for {self.count(FAILS)}; with one seed there is no test, and a difference may be chance."
            )
        lines += [
            f"Rank correlation of {column} with the published one: {value:+.2f} over {n} rows."
            for column, (value, n) in self.correlations.items()
        ]
        lines += [f"{name}: not quite theirs: {how}" for name, how in self.differs]
        return lines + [f"{name}: not available: {reason}" for name, reason in self.unavailable]

    def to_csv(self) -> str:
        """Write the lines as CSV, unknown numbers as empty cells, rows that could not be run with the reason."""
        text = io.StringIO()
        out = csv.DictWriter(text, [*(f.name for f in dataclasses.fields(Line)), "unavailable"], lineterminator="\n")
        out.writeheader()
        out.writerows({k: "" if v is None else v for k, v in dataclasses.asdict(line).items()} for line in self.lines)
        out.writerows({"name": name, "unavailable": reason} for name, reason in self.unavailable)
        return text.getvalue()


def beside(
    table: Table,
    rows: Sequence[ResultRow],
    outcomes: Mapping[str, Sequence[Outcome]],
    unavailable: tuple[tuple[str, str], ...] = (),
) -> Beside:
    """Put the rows of a comparison beside those of the table they come from."""
    ours = {row.name: row for row in rows}
    printed = {row.name: row.published for row in table.rows}
    base = table.rows[0].name
    names = [row.name for row in table.rows if row.name in ours]
    lines = [_line(ours[name], ours.get(base), printed[name], printed[base]) for name in names]
    lines = _ranked(_tested(lines, base, ours, outcomes))
    columns = {"the final loss": "final", "the early loss": "early", "the speed": "speed"}
    correlations = {label: _correlation(lines, field) for label, field in columns.items()}
    return Beside(
        title=table.title,
        paper=table.paper,
        baseline=base,
        lines=tuple(lines),
        correlations={label: value for label, value in correlations.items() if value is not None},
        unavailable=unavailable,
        differs=tuple((row.name, row.differs) for row in table.rows if row.name in ours and row.differs),
    )


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties at their mean rank; None where one side is all alike."""
    x, y = _mean_ranks(a), _mean_ranks(b)
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return statistics.correlation(x, y)


def _mean_ranks(values: Sequence[float]) -> list[float]:
    return [sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values]


FIGURES: dict[str, tuple[str, str, Callable[[float, float], float]]] = {
    "final": ("final", "final", operator.sub),
    "early": ("early", "early", operator.sub),
    "params": ("params", "params", operator.truediv),
    "ops": ("flops_per_token", "ops", operator.truediv),
    "speed": ("tokens_per_second", "steps_per_second", operator.truediv),
}
"""Fields of a line: those of a row and of the table that they come from, and how they are held against the baseline."""


def _line(row: ResultRow, base: ResultRow | None, printed: Published, base_printed: Published) -> Line:
    numbers: dict[str, float | None] = {}
    for name, (own, theirs, of) in FIGURES.items():
        numbers[name] = _against(of, getattr(row, own), getattr(base, own, None))
        published = _against(of, getattr(printed, theirs), getattr(base_printed, theirs))
        # what is printed with three digits has no more after a subtraction
        numbers[f"{name}_published"] = None if published is None else round(published, 6)
    return Line(name=row.name, **numbers)  # type: ignore[arg-type]


def _against(of: Callable[[float, float], float], value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else of(value, base)


def _tested(
    lines: Sequence[Line], base: str, ours: Mapping[str, ResultRow], outcomes: Mapping[str, Sequence[Outcome]]
) -> list[Line]:
    """Judge every row but the baseline: by its sign, and with several seeds by a test of it."""

    judged = [line for line in lines if line.name != base and None not in (line.final, line.final_published)]
    scores = aligned(ours[base].measure, {name: outcomes.get(name, ()) for name in (base, *(x.name for x in judged))})
    p_values = {standing.name: standing.p for standing in judge(scores, against=base)}
    p_of = {line.name: p_values.get(line.name) for line in judged}
    return [
        dataclasses.replace(line, p=p_of[line.name], holds=_verdict(line, p_of[line.name]))
        if line.name in p_of
        else line
        for line in lines
    ]


def _verdict(line: Line, p: float | None) -> str:
    assert line.final is not None
    assert line.final_published is not None
    if line.final_published == 0:
        return EQUAL
    if p is not None and p >= LEVEL:
        return UNCLEAR
    return HOLDS if (line.final > 0) == (line.final_published > 0) and line.final != 0 else FAILS


def _ranked(lines: Sequence[Line]) -> list[Line]:
    both = [(x.final, x.final_published) for x in lines if x.final is not None and x.final_published is not None]

    def place(line: Line) -> Line:
        if line.final is None or line.final_published is None:
            return line
        rank = 1 + sum(a < line.final for a, _ in both)
        return dataclasses.replace(line, rank=rank, rank_published=1 + sum(b < line.final_published for _, b in both))

    return list(map(place, lines))


def _correlation(lines: Sequence[Line], field: str) -> tuple[float, int] | None:
    pairs = [(getattr(line, field), getattr(line, f"{field}_published")) for line in lines]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(both) < FEWEST:
        return None
    value = spearman([a for a, _ in both], [b for _, b in both])
    return None if value is None else (value, len(both))
