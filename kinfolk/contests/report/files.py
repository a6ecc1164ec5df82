"""The files of a comparison: results.json, results.csv, report.html, figures, a LaTeX table, a methods paragraph."""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.outcome import write_json
from kinfolk.contests.report.answer import methods
from kinfolk.contests.report.battery import battery_charts
from kinfolk.contests.report.budgets import branch_chart, size_chart, speedup_chart
from kinfolk.contests.report.evidence import (
    colours,
    columns_of,
    cost_charts,
    interval_chart,
    learning_charts,
    measures_of,
)
from kinfolk.contests.report.page import render
from kinfolk.contests.report.rates import rate_charts
from kinfolk.contests.results import ResultRow, to_csv
from kinfolk.decoding.samples import samples
from kinfolk.report.charts import Chart, file
from kinfolk.report.latex import tabular
from kinfolk.runs import durable
from kinfolk.train.report import TextSample

RESULTS, TABLE, REPORT, PUBLISHED = "results.json", "results.csv", "report.html", "published.csv"
LATEX, METHODS, FIGURES, SAMPLES = "table.tex", "methods.txt", "figures", "samples.json"
PRINTED = ("contestant", "final", "difference", "rate", "params", "tokens/s", "peak memory")
"""Columns of the LaTeX table."""


def write(comparison: Comparison) -> Path:
    """Write all files of a comparison into its folder, each atomically; return the path of the report."""
    folder = comparison.folder
    write_json(folder / RESULTS, json.loads(json.dumps(comparison.to_plain())))
    durable.write(folder / TABLE, to_csv(comparison.rows))
    if published := comparison.beside:
        durable.write(folder / PUBLISHED, published.to_csv())
    durable.write(folder / METHODS, methods(comparison))
    durable.write(folder / LATEX, latex(comparison.rows))
    _write_figures(comparison, folder / FIGURES)
    durable.write(folder / REPORT, render(comparison, texts(comparison)))
    return folder / REPORT


def texts(comparison: Comparison) -> dict[str, list[TextSample]]:
    """Return what the first trained trial of each contestant writes; sampled once, and kept in samples.json."""
    kept = _kept_texts(comparison.folder / SAMPLES)
    first = {name: next((o for o in trials if o.done and o.key), None) for name, trials in comparison.outcomes.items()}
    found: dict[str, str] = {}
    for outcome in filter(None, first.values()):
        # with several sizes the trials are one folder further down
        places = (comparison.folder.glob(f"{up}trials/*-{outcome.key}/run") for up in ("", "*/"))
        run = next(itertools.chain.from_iterable(places), None)
        if outcome.key in kept:
            found[outcome.key] = kept[outcome.key]
        elif run is not None:
            found[outcome.key] = "".join(sample.text for sample in samples(run))
    if found and found != kept:
        write_json(comparison.folder / SAMPLES, found)
    return {
        name: [TextSample("", found[outcome.key])]
        for name, outcome in first.items()
        if outcome is not None and found.get(outcome.key)
    }


def _kept_texts(file: Path) -> dict[str, str]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return {str(key): str(text) for key, text in data.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def figures(comparison: Comparison) -> dict[str, Chart]:
    """Return the charts of a comparison by the name of their file."""
    rows, colour = comparison.rows, colours(comparison)
    drawn: dict[str, Chart | None] = {}
    for measure, charts in learning_charts(comparison).items():
        drawn |= {f"curves-{measure}-{used}": chart for used, chart in charts.items()}
    for measure in measures_of(rows):
        drawn[f"differences-{measure}"] = interval_chart(rows, colour, measure)
        drawn |= {f"{measure}-by-{cost}": chart for cost, chart in cost_charts(rows, colour, measure).items()}
    for measure, chart in rate_charts(comparison.rates, colour).items():
        drawn[f"rates-{measure}"] = chart
    drawn["budgets"], drawn["speed-up"] = branch_chart(rows, colour), speedup_chart(rows, colour)
    if comparison.sizes is not None and comparison.sizes.losses:
        drawn["sizes"] = size_chart(comparison.sizes, colour, rows[0].measure)
    drawn |= battery_charts({row.name: row.battery for row in rows if row.battery is not None}, colour)
    file_names = {name: re.sub(r"[^A-Za-z0-9._-]+", "-", name).lower() for name in drawn}
    return {file_names[name]: chart for name, chart in drawn.items() if chart is not None}


def latex(rows: Sequence[ResultRow]) -> str:
    """Return the result as a LaTeX table (booktabs), the best row in bold."""
    shown = {row.name: columns_of(row) for row in rows}
    used = [name for name in PRINTED if any(found.get(name, "-") != "-" for found in shown.values())]
    body = [[found[name] for name in used] for found in shown.values()]
    return tabular(used, body, bold=[row.rank == 1 for row in rows])


def _write_figures(comparison: Comparison, folder: Path) -> None:
    drawn = figures(comparison)
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in drawn.items():
        durable.write(folder / f"{name}.svg", file(chart.title, [chart]))
    # figures of an earlier run of the comparison that has fewer now
    for old in folder.glob("*.svg"):
        if old.stem not in drawn:
            old.unlink()
