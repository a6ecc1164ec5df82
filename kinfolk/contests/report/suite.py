"""The page of a suite: scores by task, cost by length, a chart of both, and what was published."""

from collections.abc import Sequence
from pathlib import Path

from kinfolk.contests.arena import average
from kinfolk.contests.outcome import write_json
from kinfolk.contests.suite_result import SuiteResult, SuiteStanding
from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartDot
from kinfolk.report.figures import bullets, figure, method, scripts, section
from kinfolk.report.html import Html, asset, page, tag
from kinfolk.report.numbers import memory
from kinfolk.report.tables import table
from kinfolk.runs import durable


def write(result: SuiteResult) -> Path:
    """Write `results.json`, `results.csv` and `report.html`; return the path of the report."""
    write_json(result.folder / "results.json", result.to_plain())
    durable.write(result.folder / "results.csv", result.to_csv())
    durable.write(result.folder / "report.html", render(result))
    return result.folder / "report.html"


def render(result: SuiteResult) -> str:
    """Return the whole page."""
    title = f"{', '.join(s.name for s in result.standings)} on {result.suite.name}"
    origin, cost = result.suite.origin, list[Html]()
    if result.suite.lengths:
        cost = [
            _section("Cost of a training step on text, by its length", costs(result), "costs", COST),
            section("Score, speed and memory", _picture(result), key="picture"),
        ]
    rows = published(result) if origin.rows else None
    body = tag(
        "main",
        tag("header", tag("p", "Kinfolk · suite", class_="eyebrow"), tag("h1", title), _line(result)),
        _section("Accuracy", scores(result), "scores", GUESS),
        *cost,
        _section("What was published", rows, "published", origin.note, origin.paper),
        _tasks(result),
        method(result.command, result.facts),
    )
    return page(title, asset("page.css"), body, scripts())


GUESS = (
    "In per cent of held-out examples, after the last step of the budget; ± is the spread over seeds. The "
    "last row always answers the most frequent class. The interquartile mean is that of the middle half of all scores, "
    "tasks and seeds together, with a bootstrap that draws seeds within each task (Agarwal et al. 2021)."
)
COST = (
    "Steps a second, one process at a time; the mean ratio to the first contestant; and the most memory of a step, on "
    "top of what the program needs anyway."
)


def scores(result: SuiteResult) -> list[list[str]]:
    """Return the table of accuracies, with its head."""
    tasks = list(result.suite.tasks)
    lines = [["", *tasks, "average", "interquartile mean"]]
    for s in result.standings:
        average_of = f"{s.average:.1f}" if s.average else "-"
        middle = "{:.1f} [{:.1f}, {:.1f}]".format(*s.middle) if s.middle else "-"
        lines.append([s.name, *(_score(s, task) for task in tasks), average_of, middle])
    guesses = [result.guesses[task] for task in tasks]
    lines.append(["most frequent class", *(f"{guess:.1f}" for guess in guesses), f"{average(tuple(guesses)):.1f}", "-"])
    return lines


def costs(result: SuiteResult) -> list[list[str]]:
    """Return the table of speed and memory, with its head."""
    lengths = result.suite.lengths
    lines = [["", *(f"{n:,}: steps/s" for n in lengths), "speed", *(f"{n:,}: memory" for n in lengths)]]
    for s in result.standings:
        speeds = [f"{s.speed[n]:.3g}" if n in s.speed else "-" for n in lengths]
        ratio = f"{s.relative_speed:.2f}x" if s.relative_speed else "-"
        lines.append([s.name, *speeds, ratio, *(memory(s.memory.get(n)) for n in lengths)])
    return lines


def published(result: SuiteResult) -> list[list[str]]:
    """Return the published table, with its head and the contestants that correspond to each row."""
    origin = result.suite.origin
    here = {name: [s.name for s in result.standings if s.published == name] for name in origin.rows}
    lines = [["", *origin.columns, "average", "here"]]
    for name, found in origin.rows.items():
        lines.append([name, *(f"{x:.2f}" for x in found), f"{average(found):.2f}", ", ".join(here[name]) or "-"])
    return lines


def _score(standing: SuiteStanding, task: str) -> str:
    if task not in standing.scores:
        return "-"
    spread = f" ± {standing.spreads[task]:.1f}" if standing.spreads[task] else ""
    return f"{standing.scores[task]:.1f}{spread}"


def _line(result: SuiteResult) -> Html:
    facts = result.facts
    return tag(
        "p", " · ".join(facts[name] for name in ("budget", "match", "seeds", "made") if name in facts), class_="dim"
    )


def _section(title: str, lines: Sequence[Sequence[str]] | None, name: str, *notes: str) -> Html:
    """Return a part of the page: a table whose first line is its head, and notes below it."""
    grid = table(lines[0], lines[1:]) if lines else None
    return section(title, grid, *(tag("p", note, class_="dim") for note in notes), key=name)


def _picture(result: SuiteResult) -> Html:
    """Draw speed to the right, average score upwards, memory as the area."""
    shown = [s for s in result.standings if s.average is not None and s.relative_speed and s.memory]
    if not shown:
        return tag("p", "No contestant has a score in every task and a speed.", class_="dim")
    longest = max(n for s in shown for n in s.memory)
    most = max(s.memory.get(longest, 0.0) for s in shown) or 1.0
    first = next(iter(result.comparisons.values())).cards[0].name
    marks = [
        ChartDot(
            x=s.relative_speed or 1.0,
            y=s.average or 0.0,
            colour=i,
            name=s.name,
            label=s.name,
            area=1.01 + 20 * s.memory.get(longest, 0.0) / most,
            tip=f"{s.name}\n{s.average:.1f} %, {s.relative_speed:.2f}x, {memory(s.memory.get(longest))}",
        )
        for i, s in enumerate(shown)
    ]
    chart = Chart(
        title="Average accuracy against speed; the area is memory",
        x=Axis(label=f"steps a second against {first}", scale="log", write=lambda value: f"{value:g}x"),
        y=Axis(label="average accuracy in per cent"),
        marks=marks,
        height=400,
    )
    return figure(chart, f"Speed is the mean over lengths; the area is the memory of a step at {longest:,} tokens.")


def _tasks(result: SuiteResult) -> Html:
    links = (
        tag("li", tag("a", f"{task}: {data}", href=f"{task}/report.html")) for task, data in result.suite.tasks.items()
    )
    notes = [f"{s.name}, {note}" for s in result.standings for note in s.notes]
    return section("Each task by itself", tag("ul", *links), bullets(notes), key="tasks")
