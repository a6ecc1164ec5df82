"""Rate sensitivity: loss against learning rate for each contestant, and which rate was chosen."""

from collections.abc import Mapping, Sequence

from kinfolk.contests.evidence import FULL, RateCurve
from kinfolk.contests.results import ResultRow
from kinfolk.objectives.measures.measure import measure_of
from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartLine, Mark
from kinfolk.report.figures import figure, section, swatch, tabs
from kinfolk.report.html import Html, tag
from kinfolk.report.numbers import amount
from kinfolk.report.tables import Cell, Column, TableLine, table

NOTE = (
    "Each point is one learning rate with a finished schedule of its own, on the seeds and the split of the search, "
    "which do not judge. Solid: half of the budget; dashed: all of it. A flat curve is a forgiving contestant."
)
COLUMNS = (
    Column("contestant"),
    Column("own rate", "the learning rate of the recipe"),
    Column("chosen", "the rate that the verdict is on"),
    Column("tried", "how many rates were tried"),
    Column("within 0.05", "ratio of the highest to the lowest rate whose score is at most 0.05 worse than the best"),
    Column("trials", "of the search, failed ones included"),
    Column("tokens", "read by the search"),
    Column("edge", "whether the choice is the last rate on its side, so that a better one may lie beyond", text=True),
)
NEAR = 0.05


def rates(rows: Sequence[ResultRow], colour: Mapping[str, int]) -> Html:
    """Return the section, or nothing where no rate was searched for."""
    found = {row.name: row.rates for row in rows if row.rates is not None and row.rates.tried}
    charts = rate_charts(found, colour)
    panels = {}
    for measure, chart in charts.items():
        names = {name: colour.get(name, 7) for name, curve in found.items() if curve.measure == measure}
        panels[measure] = figure(chart, NOTE, names)
    lines = [TableLine(_cells(name, curve, colour), name=name) for name, curve in found.items()]
    drawn = tabs("rates", "metric", panels)
    return section("Rate sensitivity", drawn or None, table(COLUMNS, lines) if lines else None, key="rates")


def rate_charts(found: Mapping[str, RateCurve], colour: Mapping[str, int]) -> dict[str, Chart]:
    """Return one chart per metric."""
    measures = dict.fromkeys(curve.measure for curve in found.values())
    return {measure: _chart(found, colour, measure) for measure in measures}


def _chart(found: Mapping[str, RateCurve], colour: Mapping[str, int], measure: str) -> Chart:
    marks: list[Mark] = []
    for name, curve in found.items():
        for share in sorted({tried.share for tried in curve.tried}) if curve.measure == measure else ():
            points = sorted((t.lr, t.mean) for t in curve.tried if t.share == share and t.mean is not None)
            tips = [_tip(name, curve, lr, loss, share) for lr, loss in points]
            whole = share == FULL
            marks.append(ChartLine(points=points, colour=colour.get(name, 7), name=name, tips=tips, dashed=whole))
    return Chart(
        title=f"{measure_of(measure).title} against learning rate",
        x=Axis(label="learning rate", scale="log"),
        y=Axis(label=measure_of(measure).title),
        marks=marks,
    )


def _tip(name: str, curve: RateCurve, lr: float, loss: float, share: float) -> str:
    chosen = ", chosen" if lr == curve.chosen else ""
    return f"{name}\nrate {lr:.3g}{chosen}\n{loss:.4f} at {share:g} of the budget"


def forgiving(curve: RateCurve) -> float | None:
    """Return how far apart the rates are whose score is near the best, as a ratio; None where none has a score."""
    least = min(tried.share for tried in curve.tried)
    sign = -1 if measure_of(curve.measure).higher else 1
    costs = {t.lr: sign * t.mean for t in curve.tried if t.share == least and t.mean is not None}
    near = [lr for lr, cost in costs.items() if cost <= min(costs.values()) + NEAR]
    return max(near) / min(near) if near else None


def _cells(name: str, curve: RateCurve, colour: Mapping[str, int]) -> list[Cell | str]:
    ratio = forgiving(curve)
    return [
        Cell(name, before=swatch(colour.get(name, 7))),
        f"{curve.own:.3g}",
        f"{curve.chosen:.3g}",
        str(len({tried.lr for tried in curve.tried})),
        f"{ratio:.3g}x" if ratio else "-",
        str(curve.spent.trials),
        amount(curve.spent.tokens, 3),
        curve.edge or "-",
    ]


def search_space(found: Mapping[str, RateCurve]) -> Html | None:
    """Return every rate that was tried, as a list for reviewers."""
    lines = [
        f"{name}: {', '.join(f'{lr:.3g}' for lr in sorted({t.lr for t in curve.tried}))} "
        f"({curve.spent.trials} trials; chosen {curve.chosen:.3g})"
        for name, curve in found.items()
    ]
    return tag("ul", *(tag("li", line) for line in lines), class_="notes") if lines else None
