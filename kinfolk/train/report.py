"""The page of a finished run: report.html with curves, settings and samples, from the files of the run alone."""

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError
from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartLine, Mark
from kinfolk.report.figures import facts, figure, scripts, section
from kinfolk.report.html import Html, asset, page, tag
from kinfolk.report.numbers import amount
from kinfolk.runs import durable, folder
from kinfolk.train import metrics

NAME = "report.html"
MOST = 300
"""Points of a curve; more steps are averaged in this many pieces."""


@dataclasses.dataclass(frozen=True)
class TextSample:
    """What the model writes after a prompt."""

    prompt: str
    text: str


def write(out: Path, samples: Sequence[TextSample] = ()) -> Path:
    """Write report.html into a run folder, atomically; nothing is computed that the run has not written."""
    durable.write(out / NAME, render(out, samples))
    return out / NAME


def render(out: Path, samples: Sequence[TextSample] = ()) -> str:
    """Return the page."""
    result = folder.result(out) or {}
    rows = _rows(out / "metrics.jsonl")
    name = str(result.get("name") or out.resolve().name)
    body = tag(
        "main",
        tag("p", "Kinfolk · run", class_="eyebrow"),
        tag("h1", name),
        tag("p", _line(result), class_="verdict"),
        section("Loss", *(figure(chart, caption, names) for chart, caption, names in _losses(rows)), key="loss"),
        section("Steps", tag("div", *map(figure, _steps(rows)), class_="charts") if rows else None, key="steps"),
        _samples(samples),
        section("Result", facts(_result(result)) if result else None, key="result"),
        _settings(out),
    )
    return page(name, asset("page.css"), body, scripts())


def _rows(file: Path) -> list[dict[str, Any]]:
    """Read the metrics as far as they can be read: a run is not lost because its report is short."""
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(DataError, OSError):
        rows.extend(metrics.read(file))
    return rows


def _line(result: Mapping[str, Any]) -> str:
    """Say how the run ended, in one sentence."""
    if not result:
        return "This run is not finished."
    scores = ", ".join(f"{name} {value:.4f}" for name, value in (result.get("valid") or {}).items())
    took = f"{result['step']:,} of {result['total_steps']:,} steps, {amount(result['tokens'], 3)} tokens"
    return f"{result['status']} after {took}{f'; validation: {scores}' if scores else ''}."


Drawn = tuple[Chart, str, Mapping[str, int]]


def _losses(rows: Sequence[Mapping[str, Any]]) -> list[Drawn]:
    """Draw the training loss and every metric of the validations; the training loss beside the first of them."""
    training = _thin((row["step"], row["loss"]) for row in rows if row.get("loss") is not None)
    metrics_ = dict.fromkeys(name for row in rows for name in row.get("valid", {}))
    drawn: list[Drawn] = []
    for i, metric in enumerate(metrics_ or {"": None}):
        points = [(row["step"], row["valid"][metric]) for row in rows if metric in row.get("valid", {})]
        marks: list[Mark] = [_curve(points, 1, metric)] if points else []
        marks += [_curve(training, 0, "training loss")] if i == 0 and training else []
        names = ({"training loss": 0} if i == 0 and training else {}) | ({metric: 1} if points else {})
        title = f"{metric or 'training loss'} by step"
        chart = Chart(title=title, x=Axis(label="steps"), y=Axis(label=metric or "loss"), marks=marks)
        drawn += [(chart, "", names)] if marks else []
    return drawn


def _steps(rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw the learning rate, the norm of gradients and the speed."""
    labels = {"lr": "learning rate", "grad_norm": "gradient norm", "tokens_per_second": "tokens per second"}
    charts = []
    for key, label in labels.items():
        points = _thin((row["step"], row[key]) for row in rows if row.get(key) is not None)
        if points:
            marks = [_curve(points, 2, label)]
            x, y = Axis(label="steps"), Axis(label=label)
            charts.append(Chart(title=f"{label} by step", x=x, y=y, marks=marks, width=520, height=260))
    return charts


def _curve(points: Sequence[tuple[float, float]], colour: int, name: str) -> ChartLine:
    few = len(points) <= 40
    tips = [f"{name}\nstep {step:,.0f}: {value:.4g}" for step, value in points] if few else ()
    return ChartLine(points=points, colour=colour, name=name, tips=tips)


def _thin(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Average points in pieces, so that the page of a long run stays small; what is not finite is left out."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    size = math.ceil(len(finite) / MOST) or 1
    pieces = (finite[i : i + size] for i in range(0, len(finite), size))
    return [(statistics.fmean(x for x, _ in piece), statistics.fmean(y for _, y in piece)) for piece in pieces]


def _samples(samples: Sequence[TextSample]) -> Html:
    texts = [
        tag("pre", tag("strong", sample.prompt) if sample.prompt else None, sample.text, class_="command")
        for sample in samples
    ]
    note = tag("p", "Sampled after training; what is bold was given.", class_="dim") if texts else None
    return section("Samples", note, *texts, key="samples")


def _result(result: Mapping[str, Any]) -> dict[str, str]:
    values = {key: value for key, value in result.items() if value not in (None, {}) and key != "out"}
    return {key.replace("_", " "): _word(value) for key, value in values.items()}


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_word(one)}" for key, one in value.items())
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)


def _settings(out: Path) -> Html:
    files = {name: out / name for name in (folder.SPEC, folder.RUN)}
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    parts = [tag("details", tag("summary", name), tag("pre", text)) for name, text in texts.items()]
    return section("Settings", *parts, key="settings")
