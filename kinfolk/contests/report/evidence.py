"""The evidence of a comparison: the table with intervals, learning curves, and quality against cost."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.outcome import Outcome, Point
from kinfolk.contests.results import ResultRow, held_against
from kinfolk.contests.table import WORDS, cells, gain_of, notes, number
from kinfolk.objectives.measures.measure import measure_of
from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartDot, ChartLine, Rule, forest
from kinfolk.report.figures import bullets, figure, section, swatch, tabs
from kinfolk.report.html import Html, join, tag
from kinfolk.report.numbers import amount, memory
from kinfolk.report.tables import Cell, Column, TableLine, table

COLUMNS = {
    "rank": "place among contestants of the same metric; * worse than the best (or a named baseline), + better, "
    "≈ not told apart",
    "final": "mean over seeds of the score that is judged, ± their standard deviation",
    "of": "the metric; only rows of one metric are compared",
    "difference": "to the best, or to a named baseline, with its simultaneous interval; positive is worse",
    "bits/byte": "the loss per byte of text, comparable between tokenizers",
    "early": "the first validation after a tenth of the steps",
    "params": "trainable parameters",
    "FLOPs/token": "floating-point operations of a forward pass, per token",
    "tokens/s": "training speed on this machine",
    "as is": "the same at the recipe's own learning rate",
    "rate": "the learning rate that was found for it, on seeds and a split that do not judge",
    "best?": "chance of being the best of all",
    "speed-up": "effective speed-up: as good as this many times the baseline's budget; ~ far from the fitted budgets",
    "epochs": "how often a trial saw the training data",
    "flags": "what is unusual about its trials",
    "peak memory": "the most resident memory of the training process, interpreter and libraries included",
}
"""What the columns of the result mean."""

USED: dict[str, tuple[str, Callable[[Point], float]]] = {
    "steps": ("steps", lambda point: point.step),
    "tokens": ("tokens", lambda point: point.tokens),
    "seconds": ("seconds of training", lambda point: point.seconds),
    "FLOPs": ("floating-point operations", lambda point: point.flops),
}
"""What a learning curve is drawn against."""

COSTS: dict[str, tuple[str, Callable[[ResultRow], float | None]]] = {
    "speed": ("tokens per second in training", lambda row: row.tokens_per_second),
    "memory": ("peak memory, bytes", lambda row: row.peak_bytes),
    "FLOPs/token": ("operations per token, forward", lambda row: row.flops_per_token),
    "parameters": ("parameters", lambda row: row.params),
}
"""What quality is drawn against."""


def colours(comparison: Comparison) -> dict[str, int]:
    """Return the colour of every contestant, the same on the whole page."""
    return {card.name: i for i, card in enumerate(comparison.cards)}


def result(rows: Sequence[ResultRow], colour: Mapping[str, int]) -> Html:
    """Return the table of results: one row per contestant, best first within each metric."""
    if not rows:
        return Html("")
    shown = {row.name: columns_of(row) for row in rows}
    order = ["contestant", *(name for name in shown[rows[0].name] if name != "contestant")]
    # a column without a figure says nothing, nor does one metric in every row
    same = {"of"} if len({row.measure for row in rows}) == 1 else set()
    used = [
        name
        for name in order
        if name not in same and (name in WORDS or any(found[name] != "-" for found in shown.values()))
    ]
    columns = [Column(name, COLUMNS.get(name, ""), text=name in WORDS) for name in used]
    lines = []
    for i, row in enumerate(rows):
        new_group = i > 0 and row.measure != rows[i - 1].measure
        kind = " ".join(filter(None, ("best" if row.rank == 1 else "", "group" if new_group else "")))
        found = [_cell(row, name, shown[row.name][name], colour) for name in used]
        lines.append(TableLine(found, kind=kind, name=row.name))
    title = f"Result: {rows[0].measure}" if same and rows[0].measure else "Result"
    return section(title, table(columns, lines), bullets(notes(rows)), key="result")


def columns_of(row: ResultRow) -> dict[str, str]:
    """Return what the page shows of a contestant: what is on screen, and what has no room there."""
    more = {
        "as is": number(row.as_is),
        "rate": "-" if row.lr is None else f"{row.lr:.3g}",
        "best?": "-" if row.chance is None else f"{row.chance:.0%}",
        "speed-up": gain_of(row),
        "epochs": "-" if row.epochs is None else f"{row.epochs:.2g}",
        "flags": "; ".join(row.flags) or "-",
    }
    return cells(row) | {name: value for name, value in more.items() if name not in cells(row)}


def _cell(row: ResultRow, name: str, value: str, colour: Mapping[str, int]) -> Cell:
    if name == "contestant":
        return Cell(value, before=swatch(colour.get(row.name, 7)))
    if name == "rank" and row.p is not None:
        return Cell(value, f"p = {row.p:.3g}, corrected; chance of being best {row.chance or 0:.0%}")
    if name == "peak memory" and row.growth_bytes:
        return Cell(value, f"{memory(row.growth_bytes)} of it came after start-up")
    if name == "difference" and "[" in value:
        difference, _, bounds = value.partition(" ")
        return Cell(tag("span", difference, tag("small", f" {bounds}", class_="interval")))
    return Cell(value)


def curves(comparison: Comparison) -> Html:
    """Return the learning curves: one tab per metric, and one per what they are drawn against."""
    charts = learning_charts(comparison)
    colour = colours(comparison)
    note = "Thick: mean over seeds; thin: each seed. With scripts, press a name to hide or show it."
    panels = {
        measure: tabs(
            f"curve-{i}",
            "drawn against",
            {key: figure(chart, note, _present(comparison, colour, measure)) for key, chart in found.items()},
        )
        for i, (measure, found) in enumerate(charts.items())
    }
    return section("Learning curves", tabs("curves", "metric", panels) or None, key="curves")


def learning_charts(comparison: Comparison) -> dict[str, dict[str, Chart]]:
    """Return charts of validations by metric, and by what they are drawn against."""
    trials = [trial for found in comparison.outcomes.values() for trial in found if trial.curve]
    names = measures_of(comparison.rows)
    names += sorted({name for trial in trials for point in trial.curve for name in point.valid} - set(names))
    return {
        measure: {key: _learning(comparison, measure, key) for key in USED if _reaches(trials, measure, key)}
        for measure in names
    }


def _reaches(trials: Sequence[Outcome], measure: str, key: str) -> bool:
    of = USED[key][1]
    return any(of(point) > 0 for trial in trials for point in trial.curve if measure in point.valid)


def _present(comparison: Comparison, colour: Mapping[str, int], measure: str) -> dict[str, int]:
    """Return the colours of contestants that have a metric."""
    return {
        name: colour[name]
        for name, trials in comparison.outcomes.items()
        if any(measure in point.valid for trial in trials for point in trial.curve)
    }


def _learning(comparison: Comparison, measure: str, key: str) -> Chart:
    label, of = USED[key]
    colour = colours(comparison)
    marks: list[ChartLine] = []
    for name in _present(comparison, colour, measure):
        seeds = [
            [(of(point), point.valid[measure]) for point in trial.curve if measure in point.valid]
            for trial in comparison.outcomes[name]
        ]
        seeds = [points for points in seeds if points]
        if len(seeds) > 1:
            marks += [ChartLine(points=points, colour=colour[name], name=name, thin=True) for points in seeds]
        # validations of all seeds, averaged place by place as far as all of them go
        mean = [
            (statistics.fmean(x for x, _ in at), statistics.fmean(y for _, y in at)) for at in zip(*seeds, strict=False)
        ]
        tips = [f"{name}\n{measure} {y:.4f}\n{amount(x, 3)} {key}" for x, y in mean]
        marks.append(ChartLine(points=mean, colour=colour[name], name=name, tips=tips))
    title = f"{measure_of(measure).title} against {label}, {len(_present(comparison, colour, measure))} contestants"
    return Chart(title=title, x=Axis(label=label), y=Axis(label=measure_of(measure).title), marks=marks)


def trade(comparison: Comparison, rows: Sequence[ResultRow]) -> Html:
    """Return quality against cost, one tab per cost."""
    panels = {}
    for i, measure in enumerate(measures_of(rows)):
        charts = cost_charts(rows, colours(comparison), measure)
        better = "higher" if measure_of(measure).higher else "lower"
        note = f"{better.capitalize()} is better; the bar is the standard deviation over seeds."
        panels[measure] = tabs(f"cost-{i}", "cost", {key: figure(chart, note) for key, chart in charts.items()})
    return section("Quality against cost", tabs("trade", "metric", panels) or None, key="trade")


def cost_charts(rows: Sequence[ResultRow], colour: Mapping[str, int], measure: str) -> dict[str, Chart]:
    """Return the charts of one metric by what it costs."""
    charts = {key: _trade(rows, colour, measure, key) for key in COSTS}
    return {key: chart for key, chart in charts.items() if chart is not None}


def _trade(rows: Sequence[ResultRow], colour: Mapping[str, int], measure: str, key: str) -> Chart | None:
    label, of = COSTS[key]
    shown = [(row, of(row)) for row in rows if row.measure == measure and row.final is not None and of(row)]
    marks = [
        ChartDot(
            x=cost or math.nan,
            y=row.final or 0.0,
            colour=colour.get(row.name, 7),
            name=row.name,
            label=row.name,
            tip=f"{row.name}\n{measure} {row.final:.4f}\n{amount(cost or 0, 3)} {label}",
            low=None if row.spread is None else (row.final or 0.0) - row.spread,
            high=None if row.spread is None else (row.final or 0.0) + row.spread,
        )
        for row, cost in shown
    ]
    metric = measure_of(measure).title
    title = f"{metric} against {label}"
    return Chart(title=title, x=Axis(label=label), y=Axis(label=metric), marks=marks) if marks else None


def intervals(rows: Sequence[ResultRow], colour: Mapping[str, int]) -> Html:
    """Return the differences to the best, or to a named baseline, with their intervals, as a chart per metric."""
    charts = (interval_chart(rows, colour, measure) for measure in measures_of(rows))
    note = "Simultaneous intervals; one that reaches 0 is not told apart."
    drawn = join(*(figure(chart, note) for chart in charts if chart is not None))
    return section("Differences", drawn or None, key="intervals")


def measures_of(rows: Sequence[ResultRow]) -> list[str]:
    """Return the metrics of rows, in their order."""
    return list(dict.fromkeys(row.measure for row in rows if row.measure))


def interval_chart(rows: Sequence[ResultRow], colour: Mapping[str, int], measure: str) -> Chart | None:
    """Return a forest plot of one metric, or None where nothing was tested."""
    tested = [row for row in rows if row.measure == measure and row.p is not None and row.difference is not None]
    if not tested:
        return None
    dots = [
        ChartDot(
            x=row.difference or 0.0,
            low=row.low,
            high=row.high,
            colour=colour.get(row.name, 7),
            name=row.name,
            tip=f"{row.name}\n{row.difference:+.4f} [{row.low:+.4f}, {row.high:+.4f}]",
        )
        for row in tested
    ]
    reference, metric = held_against(rows, measure), measure_of(measure).title
    title = f"Difference to {reference} in {metric} with simultaneous intervals"
    x = Axis(label=f"difference in {metric}, positive is worse", include=(0.0,))
    return forest(title, x, dots, Rule(x=0.0, label=reference))
