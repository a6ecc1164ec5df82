"""The files of a comparison: results.json, results.csv, report.html, and published.csv beside a published table."""

import json
from pathlib import Path

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.outcome import write_json
from kinfolk.contests.report.page import render
from kinfolk.contests.results import to_csv
from kinfolk.runs import durable

RESULTS, TABLE, REPORT, PUBLISHED = "results.json", "results.csv", "report.html", "published.csv"


def write(comparison: Comparison) -> Path:
    """Write all files of a comparison into its folder, each atomically; return the path of the report."""
    folder = comparison.folder
    write_json(folder / RESULTS, json.loads(json.dumps(comparison.to_plain())))
    durable.write(folder / TABLE, to_csv(comparison.rows))
    if published := comparison.beside:
        durable.write(folder / PUBLISHED, published.to_csv())
    durable.write(folder / REPORT, render(comparison))
    return folder / REPORT
