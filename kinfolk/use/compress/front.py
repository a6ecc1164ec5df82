"""Pareto front of quality, speed and size, as a chart and a page."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartDot, Mark, Rule, file
from kinfolk.report.figures import bullets, figure, scripts
from kinfolk.report.html import asset, tag
from kinfolk.report.html import page as html_page
from kinfolk.report.tables import Column, TableLine
from kinfolk.report.tables import table as html_table
from kinfolk.runs import durable
from kinfolk.use.compress.search import CompressionSearch, Tried

COLOURS = {"front": 0, "as trained": 1, "chosen": 2, "beaten": 7}
CUT = 1.0
"""What is worse by more than this share is drawn at the edge."""

COLUMNS = {
    "steps": "what was done to the model",
    "speed": "of a forward pass, as a factor of the model as trained, by counted work: what decides",
    "timed": "the same by the clock of this machine, which decides nothing",
    "size MB": "bytes of weights",
    "memory MB": "the most memory of a forward pass",
    "worse": "how much of the quality was lost",
    "": "front: no other try is better in everything",
}


def chart(found: CompressionSearch, title: str) -> Chart:
    """Return the chart: speed to the right, loss of quality downwards, the area of a point the size of the model."""
    front = found.front()
    marks: list[Mark] = [_dot(found, one, _kind(found, one, front)) for one in found.tried]
    marks.append(
        ChartDot(x=1.0, y=0.0, colour=COLOURS["as trained"], name="as trained", area=_area(1.0), tip="as trained")
    )
    if found.goal.speed > 1:
        marks.append(Rule(x=found.goal.speed, label="goal"))
    marks.append(Rule(y=found.allowed, label="allowed"))
    return Chart(
        title=title,
        x=Axis(label="speed of a forward pass", scale="log", include=(0.9, 1.2), write=lambda value: f"{value:g} x"),
        y=Axis(
            label=f"worse in {found.first.quality[0]} (area: bytes of weights)",
            scale="root",
            include=(0.02,),
            descending=True,
            write=lambda value: f"{100 * value:g} %",
        ),
        marks=marks,
        height=420,
    )


def picture(found: CompressionSearch, title: str) -> str:
    """Return the chart as an SVG file."""
    return file(title, [chart(found, title)])


def page(found: CompressionSearch, title: str) -> str:
    """Return a page with the chart and the table: one file, nothing loaded from elsewhere."""
    heads, *body = table(found)
    columns = [Column(name, COLUMNS.get(name, "")) for name in heads]
    lines = [
        TableLine(row, kind="best" if one is not None and one is found.chosen else "")
        for one, row in zip([None, *found.tried], body, strict=True)
    ]
    main = tag(
        "main",
        tag("p", "Kinfolk · compression", class_="eyebrow"),
        tag("h1", title),
        tag("p", found.sentence(), class_="verdict"),
        figure(chart(found, title), names=COLOURS),
        html_table(columns, lines),
        bullets([f"{name}: {why}" for name, why in found.refused.items()]),
    )
    return html_page(title, asset("page.css"), main, scripts())


def summary(found: CompressionSearch) -> dict[str, Any]:
    """Return the search as plain data: what was tried, what was chosen, and the names of the front."""
    chosen = found.chosen
    return {
        "goal": str(found.goal),
        "allowed": found.allowed,
        "chosen": None if chosen is None else chosen.measured.step,
        "sentence": found.sentence(),
        "front": [one.measured.step for one in found.front()],
        "refused": found.refused,
        "tried": [dataclasses.asdict(m) for m in (found.first, *(one.measured for one in found.tried))],
    }


def write_front(found: CompressionSearch, folder: Path, model_name: str) -> None:
    """Write front.svg, front.html and front.json of a search."""
    title = f"{model_name}: {found.goal}, at most {100 * found.allowed:g} % worse"
    folder.mkdir(parents=True, exist_ok=True)
    durable.write(folder / "front.svg", picture(found, title))
    durable.write(folder / "front.html", page(found, title))
    durable.write(folder / "front.json", json.dumps(summary(found), indent=1))


def table(found: CompressionSearch) -> list[tuple[str, ...]]:
    """Return the names of columns and a row for each try, the model as it was trained first."""
    front, quality = found.front(), found.first.quality[0]
    rows: list[tuple[str, ...]] = [("steps", "speed", "timed", "size MB", "memory MB", quality, "worse", "")]
    whole = found.first
    rows.append(
        ("as trained", "1.00 x", "1.00 x", *_sizes(whole.bytes, whole.memory), f"{whole.quality[1]:.4f}", "", "")
    )
    for one in found.tried:
        m = one.measured
        mark = "chosen" if one is found.chosen else "front" if one in front else ""
        worse = f"{100 * found.cost(one):+.1f} %"
        steps = ", ".join(map(str, one.steps))
        speeds = (f"{m.speed:.2f} x", f"{m.timed:.2f} x")
        rows.append((steps, *speeds, *_sizes(m.bytes, m.memory), f"{m.quality[1]:.4f}", worse, mark))
    return rows


def _sizes(size: int, memory: int) -> tuple[str, str]:
    return f"{size / 1e6:.2f}", f"{memory / 1e6:.1f}"


def _kind(found: CompressionSearch, one: Tried, front: Sequence[Tried]) -> str:
    return "chosen" if one is found.chosen else "front" if one in front else "beaten"


def _dot(found: CompressionSearch, one: Tried, kind: str) -> ChartDot:
    size, cost = one.measured.bytes / found.first.bytes, found.cost(one)
    steps = ", ".join(map(str, one.steps))
    return ChartDot(
        x=one.measured.speed,
        # a quality that is not a number is as bad as can be
        y=min(max(cost, 0.0), CUT) if math.isfinite(cost) else CUT,
        colour=COLOURS[kind],
        name=kind,
        tip=f"{steps}\n{one.measured.speed:.2f} x ({one.measured.timed:.2f} by the clock), "
        f"{100 * cost:+.1f} %, {100 * size:.0f} % of the size",
        label="" if kind == "beaten" else steps,
        area=_area(size),
        faint=kind == "beaten",
    )


def _area(size: float) -> float:
    return 0.3 + 4 * size
