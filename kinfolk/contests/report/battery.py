"""The battery: loss by position and beyond the trained length, synthetic tasks, decoding speed, state and latency."""

from collections.abc import Callable, Mapping, Sequence

from kinfolk.contests.evidence import Battery
from kinfolk.contests.results import ResultRow
from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartLine
from kinfolk.report.figures import bullets, figure, section
from kinfolk.report.html import Html, tag
from kinfolk.report.numbers import amount, memory
from kinfolk.report.tables import table

Points = list[tuple[float, float]]


def battery(rows: Sequence[ResultRow], colour: Mapping[str, int]) -> Html:
    """Return the section, or nothing where no battery was run."""
    found = {row.name: row.battery for row in rows if row.battery is not None}
    names = {name: colour.get(name, 7) for name in found}
    drawn = [figure(chart, names=names) for chart in battery_charts(found, colour).values()]
    asked = [f"{name}, {what}: {why}" for name, one in found.items() for what, why in one.problems.items()]
    grid = tag("div", *drawn, class_="charts") if drawn else None
    return section("More than loss", _table(found), grid, bullets(asked), key="battery")


def battery_charts(found: Mapping[str, Battery], colour: Mapping[str, int]) -> dict[str, Chart]:
    """Return the charts that have figures, by the name of their file."""

    def decoding(figure_name: str) -> Callable[[Battery], Points]:
        return lambda one: [(float(at), row[figure_name]) for at, row in one.decoding.items() if figure_name in row]

    def by_position(one: Battery) -> Points:
        return [(float(position), loss) for position, loss in one.by_position.items()]

    def longer(one: Battery) -> Points:
        return [(float(times.removesuffix("x")), loss) for times, loss in one.longer.items()]

    drawn = {
        "loss-by-position": _chart(found, colour, by_position, "Loss by position", "position", "loss"),
        "loss-beyond": _chart(found, colour, longer, "Loss beyond the trained length", "times the length", "loss"),
        "decoding-speed": _chart(found, colour, decoding("tokens_per_second"), "Decoding", "position", "tokens/s"),
        "decoding-state": _chart(found, colour, decoding("state_bytes"), "State in decoding", "position", "bytes"),
    }
    return {name: chart for name, chart in drawn.items() if chart is not None}


def _chart(
    found: Mapping[str, Battery],
    colour: Mapping[str, int],
    points_of: Callable[[Battery], Points],
    title: str,
    x: str,
    y: str,
) -> Chart | None:
    marks = []
    for name, one in found.items():
        points = sorted(points_of(one))
        tips = [f"{name}\n{amount(at, 3)}: {value:.4g} {y}" for at, value in points]
        marks += [ChartLine(points=points, colour=colour.get(name, 7), name=name, tips=tips)] if points else []
    across, up = Axis(label=x, scale="log"), Axis(label=y, scale="linear" if y == "loss" else "log")
    return Chart(title=title, x=across, y=up, marks=marks, width=520, height=300) if marks else None


def _table(found: Mapping[str, Battery]) -> Html | None:
    tasks = dict.fromkeys(
        (task, name) for one in found.values() for task, scores in one.tasks.items() for name in scores
    )
    if not tasks and not any(one.latency or one.train_bytes for one in found.values()):
        return None
    head = ["contestant", *(f"{task} ({name})" for task, name in tasks), "first token", "training memory"]
    lines = []
    for name, one in found.items():
        scores = [one.tasks.get(task, {}).get(metric) for task, metric in tasks]
        latency = f"{1000 * one.latency:.1f} ms" if one.latency else "-"
        cells = ["-" if score is None else f"{score:.3f}" for score in scores]
        lines.append([name, *cells, latency, memory(one.train_bytes)])
    return table(head, lines)
