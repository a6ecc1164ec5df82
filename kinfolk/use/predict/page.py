"""A report as one HTML file: readable offline, on a phone, in light and dark, without any script."""

from kinfolk.contests.measures import MEANINGS
from kinfolk.report.html import Html, asset, join, page, tag
from kinfolk.use.predict.report import Report
from kinfolk.use.predict.worst import Example

STYLE = """
table.matrix td { text-align: center; min-width: 2.6rem; }
table.matrix th.column { max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }
article.example { border: 1px solid var(--line); border-radius: .5rem; background: var(--raised); }
article.example { margin: .75rem 0; padding: .75rem 1rem; }
article.example p { white-space: pre-wrap; overflow-wrap: anywhere; max-width: none; }
article.example dl { margin: .5rem 0 0; }
.right { color: var(--c2); } .wrong { color: var(--c1); }
"""
SIDE = 420


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
    return page(report.title, join(asset("page.css"), Html(STYLE)), body)


def _head(report: Report) -> Html:
    line = " · ".join(filter(None, (report.facts.get(name, "") for name in ("data", "examples", "made"))))
    cells = [join(tag("dt", name), tag("dd", f"{value:.4f}")) for name, value in report.figures.items()]
    return tag(
        "header",
        tag("p", "Kinfolk · evaluation", class_="eyebrow"),
        tag("h1", report.title),
        tag("p", line, class_="dim"),
        tag("dl", *cells),
        *(tag("p", text, class_="dim") for text in report.remarks),
    )


def _classes(report: Report) -> Html:
    if not report.rows:
        return Html("")
    head = tag("tr", *(tag("th", name, class_="text" if i == 0 else None) for i, name in enumerate(report.columns)))
    lines = [
        tag("tr", tag("th", row[0] or "(no kind)", scope="row", class_="text"), *(tag("td", cell) for cell in row[1:]))
        for row in report.rows
    ]
    grid = tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="scroll")
    return tag("section", tag("h2", "One by one"), grid, id="classes")


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
    """Draw guesses over labels."""
    if not report.points:
        return Html("")
    low = min(x for point in report.points for x in point)
    high = max(x for point in report.points for x in point)
    scale = (SIDE - 40) / ((high - low) or 1.0)

    def at(value: float, *, upward: bool) -> str:
        place = 30 + (value - low) * scale
        return f"{(SIDE - place) if upward else place:.1f}"

    dots = [
        tag(
            "circle", cx=at(label, upward=False), cy=at(guess, upward=True), r="3", style="fill: var(--c0); opacity: .5"
        )
        for guess, label in report.points
    ]
    corner = {"x1": at(low, upward=False), "y1": at(low, upward=True), "x2": at(high, upward=False)}
    same = tag("line", **corner, y2=at(high, upward=True), class_="grid")
    names = [
        tag("text", f"{low:g}", x="30", y=str(SIDE - 8), class_="axis"),
        tag("text", f"{high:g}", x=str(SIDE - 40), y=str(SIDE - 8), class_="axis"),
        tag("text", "guess", x="2", y="14", class_="axis"),
        tag("text", "label", x=str(SIDE // 2), y=str(SIDE - 8), class_="axis"),
    ]
    drawn = tag("svg", same, *dots, *names, viewBox=f"0 0 {SIDE} {SIDE}", style=f"max-width: {SIDE}px", role="img")
    return tag("section", tag("h2", "Guesses and labels"), tag("div", drawn, class_="chart"), id="points")


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
    facts = [join(tag("dt", name), tag("dd", value)) for name, value in report.facts.items()]
    known = [join(tag("dt", name), tag("dd", MEANINGS[name])) for name in report.figures if name in MEANINGS]
    return tag(
        "section",
        tag("h2", "How this was made"),
        tag("dl", *facts),
        tag("h3", "Measures"),
        tag("dl", *known),
        id="about",
    )
