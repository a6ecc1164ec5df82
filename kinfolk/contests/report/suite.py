"""The page of a suite: scores by task, cost by length, the picture of both, and what was published."""

import math
from collections.abc import Sequence
from pathlib import Path

from kinfolk.contests.arena import COLUMNS, NOT_COMPARABLE, PAPER, PUBLISHED, average
from kinfolk.contests.outcome import write_json
from kinfolk.contests.suite_result import Standing, SuiteResult
from kinfolk.contests.table import memory
from kinfolk.report.html import Html, asset, join, page, tag
from kinfolk.train import durable

WIDE, HIGH, EDGE = 720, 380, 56
COLOURS = 8


def write(result: SuiteResult) -> Path:
    """Write `results.json`, `results.csv` and `report.html`; return the path of the report."""
    write_json(result.folder / "results.json", result.to_plain())
    durable.write(result.folder / "results.csv", result.to_csv())
    durable.write(result.folder / "report.html", render(result))
    return result.folder / "report.html"


def render(result: SuiteResult) -> str:
    """Return the whole page."""
    title = f"{', '.join(s.name for s in result.standings)} on {result.suite.name}"
    body = tag(
        "main",
        tag("header", tag("p", "Kinfolk · suite", class_="eyebrow"), tag("h1", title), _line(result)),
        _section("Accuracy", scores(result), "scores", GUESS),
        _section("Cost of a training step on text, by its length", costs(result), "costs", COST),
        tag("section", tag("h2", "Score, speed and memory"), _picture(result), id="picture"),
        _section("What was published", published(result), "published", NOT_COMPARABLE, PAPER),
        _tasks(result),
        _made(result),
    )
    return page(title, asset("page.css"), body)


GUESS = (
    "In per cent of held-out examples, after the last step of the budget; ± is the spread over seeds. Whoever always "
    "names the most frequent class has the last row."
)
COST = (
    "Steps a second, one process at a time; the mean ratio to the first contestant; and the most memory of a step, on "
    "top of what the program needs anyway."
)


def scores(result: SuiteResult) -> list[list[str]]:
    """Return the table of accuracies, with its head."""
    tasks = list(result.suite.tasks)
    lines = [["", *tasks, "average"]]
    for s in result.standings:
        lines.append([s.name, *(_score(s, task) for task in tasks), f"{s.average:.1f}" if s.average else "-"])
    guesses = [result.guesses[task] for task in tasks]
    lines.append(["most frequent class", *(f"{guess:.1f}" for guess in guesses), f"{average(tuple(guesses)):.1f}"])
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
    """Return the published table, with its head and who stands for each row here."""
    here = {name: [s.name for s in result.standings if s.published == name] for name in PUBLISHED}
    lines = [["", *COLUMNS, "average", "here"]]
    for name, found in PUBLISHED.items():
        lines.append([name, *(f"{x:.2f}" for x in found), f"{average(found):.2f}", ", ".join(here[name]) or "-"])
    return lines


def _score(standing: Standing, task: str) -> str:
    if task not in standing.scores:
        return "-"
    spread = f" ± {standing.spreads[task]:.1f}" if standing.spreads[task] else ""
    return f"{standing.scores[task]:.1f}{spread}"


def _line(result: SuiteResult) -> Html:
    facts = result.facts
    return tag(
        "p", " · ".join(facts[name] for name in ("budget", "match", "seeds", "made") if name in facts), class_="dim"
    )


def _section(title: str, lines: Sequence[Sequence[str]], name: str, *told: str) -> Html:
    head = tag("tr", *(tag("th", cell, scope="col", class_=None if i else "text") for i, cell in enumerate(lines[0])))
    body = (
        tag("tr", *(tag("td" if i else "th", cell, class_=None if i else "text") for i, cell in enumerate(line)))
        for line in lines[1:]
    )
    grid = tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")
    return tag("section", tag("h2", title), grid, *(tag("p", text, class_="dim") for text in told), id=name)


def _picture(result: SuiteResult) -> Html:
    """Draw circles: speed to the right, average score upwards, memory as the area."""
    shown = [s for s in result.standings if s.average is not None and s.relative_speed and s.memory]
    if not shown:
        return tag("p", "Nobody has a score in every task and a speed.", class_="dim")
    longest = max(n for s in shown for n in s.memory)
    most = max(max(s.memory.values()) for s in shown)
    x = _axis([math.log2(s.relative_speed or 1) for s in shown], EDGE, WIDE - EDGE)
    y = _axis([s.average or 0.0 for s in shown], HIGH - EDGE, EDGE)
    marks = [_across(x, ratio) for ratio in _RATIOS if x[0] <= math.log2(ratio) <= x[1]]
    marks += [_up(y, value) for value in _ticks(y[0], y[1])]
    circles = []
    for i, s in enumerate(sorted(shown, key=lambda s: -max(s.memory.values()))):
        at = {"cx": _place(x, math.log2(s.relative_speed or 1)), "cy": _place(y, s.average or 0.0)}
        radius = 6 + 26 * math.sqrt(s.memory.get(longest, 0) / most)
        colour = f"var(--c{i % COLOURS})"
        told = f"{s.name}: {s.average:.1f} %, {s.relative_speed:.2f}x, {memory(s.memory.get(longest))}"
        circle = tag(
            "circle", tag("title", told), **_text(at), r=f"{radius:.1f}", fill=colour, fill_opacity=".35", stroke=colour
        )
        label = tag(
            "text", s.name, x=f"{at['cx'] + radius + 4:.1f}", y=f"{at['cy'] + 4:.1f}", class_="name", fill=colour
        )
        circles.append(join(circle, label))
    first = next(iter(result.comparisons.values())).cards[0].name
    told = (
        f"Right: steps a second against {first}, the mean over lengths. Up: average accuracy in per cent. Area: memory "
        f"of a step at {longest:,} tokens. "
    )
    svg = tag("svg", *marks, *circles, viewBox=f"0 0 {WIDE} {HIGH}", role="img", aria_label=told)
    return tag("div", svg, tag("p", told, class_="dim"), class_="chart")


Axis = tuple[float, float, float, float]

_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20)


def _axis(values: Sequence[float], start: float, stop: float) -> Axis:
    """Return what is at both ends of an axis, with some air, and where they are."""
    air = 0.15 * (max(values) - min(values)) or 0.5
    return min(values) - air, max(values) + air, start, stop


def _place(axis: Axis, value: float) -> float:
    low, high, start, stop = axis
    return start + (stop - start) * (value - low) / (high - low)


def _ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10(high - low))
    step *= next(k for k in (0.2, 0.5, 1, 2) if (high - low) / (step * k) <= 7)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _across(axis: Axis, ratio: float) -> Html:
    at = f"{_place(axis, math.log2(ratio)):.1f}"
    line = tag("line", x1=at, x2=at, y1=str(EDGE), y2=str(HIGH - EDGE), class_="grid")
    return join(line, tag("text", f"{ratio:g}x", x=at, y=str(HIGH - EDGE + 18), text_anchor="middle", class_="axis"))


def _up(axis: Axis, value: float) -> Html:
    at = f"{_place(axis, value):.1f}"
    line = tag("line", y1=at, y2=at, x1=str(EDGE), x2=str(WIDE - EDGE), class_="grid")
    return join(line, tag("text", f"{value:g}", x=str(EDGE - 8), y=at, text_anchor="end", class_="axis"))


def _text(numbers: dict[str, float]) -> dict[str, str]:
    return {name: f"{value:.1f}" for name, value in numbers.items()}


def _tasks(result: SuiteResult) -> Html:
    links = (
        tag("li", tag("a", f"{task}: {data}", href=f"{task}/report.html")) for task, data in result.suite.tasks.items()
    )
    notes = (tag("li", f"{s.name}, {note}") for s in result.standings for note in s.notes)
    return tag(
        "section", tag("h2", "Each task by itself"), tag("ul", *links), tag("ul", *notes, class_="notes"), id="tasks"
    )


def _made(result: SuiteResult) -> Html:
    facts = [join(tag("dt", name), tag("dd", value)) for name, value in result.facts.items()]
    return tag(
        "section",
        tag("h2", "How this was made"),
        tag("p", "The same command goes on where it was stopped, or shows this again:"),
        tag("pre", result.command, class_="command"),
        tag("dl", *facts),
        id="method",
    )
