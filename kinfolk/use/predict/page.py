"""A report as one HTML file: readable offline, on a phone, in light and dark, complete without scripts."""

from kinfolk.objectives.measures.measure import measure_of
from kinfolk.objectives.tasks.task import Example
from kinfolk.report.axes import Axis
from kinfolk.report.charts import Chart, ChartDot, Rule
from kinfolk.report.figures import facts, figure, scripts, section
from kinfolk.report.html import Html, asset, join, page, tag
from kinfolk.report.tables import table
from kinfolk.use.predict.report import Report

STYLE = """
table.matrix td { text-align: center; min-width: 2.6rem; }
table.matrix th.column { max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }
article.example { border: 1px solid var(--line); border-radius: .5rem; background: var(--raised); }
article.example { margin: .75rem 0; padding: .75rem 1rem; }
article.example p { white-space: pre-wrap; overflow-wrap: anywhere; max-width: none; }
article.example dl { margin: .5rem 0 0; }
.right { color: var(--c2); } .wrong { color: var(--c1); }
"""


def as_page(report: Report) -> str:
    """Return the whole page."""
    body = tag(
        "main",
        _head(report),
        _classes(report),
        _matrix(report),
        _points(report),
        _worst(report),
        _about(report),
    )
    return page(report.title, join(asset("page.css"), Html(STYLE)), body, scripts() if report.points else Html(""))


def _head(report: Report) -> Html:
    line = " · ".join(filter(None, (report.facts.get(name, "") for name in ("data", "examples", "made"))))
    return tag(
        "header",
        tag("p", "Kinfolk · evaluation", class_="eyebrow"),
        tag("h1", report.title),
        tag("p", line, class_="dim"),
        facts({name: f"{value:.4f}" for name, value in report.figures.items()}),
        *(tag("p", text, class_="dim") for text in report.remarks),
    )


def _classes(report: Report) -> Html:
    rows = [(row[0] or "(no kind)", *row[1:]) for row in report.rows]
    return section("One by one", table(report.columns, rows) if rows else None, key="classes")


def _matrix(report: Report) -> Html:
    if not report.matrix:
        return Html("")
    head = tag(
        "tr",
        tag("th", "label \\ answer", class_="text"),
        *(tag("th", name, class_="column") for name in report.classes),
    )
    lines = []
    for name, row in zip(report.classes, report.matrix, strict=True):
        total = max(1, sum(row))
        cells = []
        for other, n in zip(report.classes, row, strict=True):
            colour = "--c2" if other == name else "--c1"
            share = f"background: color-mix(in srgb, var({colour}) {round(70 * n / total)}%, transparent)"
            title = f"{n:,} of {total:,} {name} taken for {other}"
            cells.append(tag("td", f"{n:,}" if n else "", style=share if n else None, title=title))
        lines.append(tag("tr", tag("th", name, scope="row", class_="text"), *cells))
    grid = tag("table", tag("thead", head), tag("tbody", *lines), class_="matrix small")
    told = "A row is a label, a column what it was taken for; the darker, the larger its share of the row."
    return tag(
        "section",
        tag("h2", "What is taken for what"),
        tag("div", grid, class_="scroll"),
        tag("p", told, class_="dim"),
        id="matrix",
    )


def _points(report: Report) -> Html:
    """Draw predictions over labels."""
    marks = [
        ChartDot(x=label, y=guess, faint=True, tip=f"label {label:g}\nprediction {guess:g}")
        for guess, label in report.points
    ]
    chart = Chart(
        title=f"Predictions over labels of {len(marks)} examples",
        x=Axis(label="label"),
        y=Axis(label="prediction"),
        marks=[*marks, Rule(diagonal=True)],
        width=480,
        height=440,
    )
    return section("Predictions and labels", figure(chart) if marks else None, key="points")


def _worst(report: Report) -> Html:
    if not report.worst:
        return Html("")
    told = tag("p", "The highest losses first. A wrong label looks like this too.", class_="dim")
    return tag("section", tag("h2", "The worst examples"), told, *map(_example, report.worst), id="worst")


def _example(example: Example) -> Html:
    facts = [
        ("label", example.label, "right"),
        ("answer", example.answer, "wrong"),
        ("loss", f"{example.loss:.4f}", None),
    ]
    facts += [("notes", example.notes, None)] if example.notes else []
    rows = [join(tag("dt", name), tag("dd", value, class_=kind)) for name, value, kind in facts]
    return tag("article", tag("p", example.text), tag("dl", *rows), class_="example")


def _about(report: Report) -> Html:
    meanings = {name: measure_of(name).meaning for name in report.figures}
    return section("How this was made", facts(report.facts), tag("h3", "Metrics"), facts(meanings), key="about")
