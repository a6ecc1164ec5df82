"""Charts as SVG, made without scripts: lines, points, bands and rules; light and dark by style sheet.

A chart is data: two axes and marks. `draw` makes the element of a page, `file` an SVG file of one or several charts.
Colours are numbers: contestant number i has colour i on every chart of a page, and another dash after the eighth.
Presentation attributes carry the light colours, so that programs without style sheets show a file as well.
"""

import dataclasses
from collections.abc import Sequence

from kinfolk.report.axes import Axis, Scale, scale
from kinfolk.report.html import Html, join, tag

LIGHT = ("#0b62a8", "#c2410c", "#15803d", "#9333a8", "#b48a00", "#0e8a96", "#be185d", "#57534e")
DARK = ("#63b3f5", "#fb8a5a", "#5fcf86", "#d18bea", "#e5c04b", "#4fd0db", "#f37ab4", "#b5aea4")
DASHES = (None, "6 4", "2 3", "8 3 2 3")
INK, DIM, LINE = "#1d1c1a", "#6b6862", "#dedad2"
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 26, 42
LETTER, ROW = 6.8, 15
"""Width of a letter and height of a line of a name, for placing names beside points."""

STYLE = (
    "text{font:13px system-ui,sans-serif;stroke:none}.paper{fill:#fff}@media(prefers-color-scheme:dark){"
    ".paper{fill:#161513}text{fill:#ece9e2}.axis text{fill:#a09b91}.grid{stroke:#37342f}"
    + "".join(f".s{i}{{stroke:{colour};fill:{colour}}}" for i, colour in enumerate(DARK))
    + "}"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChartLine:
    """A path through points. tips: one for each point, which then has a dot; thin: one seed of several."""

    points: Sequence[tuple[float, float]]
    colour: int = 0
    name: str = ""
    tips: Sequence[str] = ()
    thin: bool = False
    dashed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChartDot:
    """A point. area: relative to other points, 1 is a small one.

    low, high: the ends of a bar through it, along y, or along x where it goes `across`. faint: beside the others.
    """

    x: float
    y: float = 0.0
    colour: int = 0
    name: str = ""
    tip: str = ""
    label: str = ""
    area: float = 1.0
    low: float | None = None
    high: float | None = None
    across: bool = False
    faint: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Band:
    """The area between two lines: (x, low, high)."""

    points: Sequence[tuple[float, float, float]]
    colour: int = 0
    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A dashed line across: at a value of x or y, or where both are equal (`diagonal`)."""

    x: float | None = None
    y: float | None = None
    diagonal: bool = False
    label: str = ""


Mark = ChartLine | ChartDot | Band | Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Marks on two axes. title: its description for screen readers."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    width: int = 640
    height: int = 340


def forest(title: str, x: Axis, dots: Sequence[ChartDot], rule: Rule) -> Chart:
    """Return a forest plot: every dot with its interval on a line of its own, beside its name, and a rule down."""
    placed = [dataclasses.replace(dot, y=float(i), across=True, label=dot.name) for i, dot in enumerate(dots)]
    y = Axis(label="", include=(-0.6, len(dots) - 0.5), descending=True, bare=True)
    return Chart(title=title, x=x, y=y, marks=[*placed, rule], height=90 + 34 * len(dots))


def draw(chart: Chart) -> Html:
    """Return the chart as an element of a page."""
    return tag("svg", tag("title", chart.title), *_inside(chart), **_size(chart.width, chart.height), role="img")


def file(title: str, charts: Sequence[Chart]) -> str:
    """Return an SVG file: charts side by side under a title, in the colours that the reader prefers."""
    width, height = sum(chart.width for chart in charts), max(chart.height for chart in charts) + 28
    panels, x = [], 0
    for chart in charts:
        panel = _size(chart.width, chart.height)
        panels.append(tag("svg", *_inside(chart), x=str(x), y="28", **panel, height=str(chart.height)))
        x += chart.width
    body = tag(
        "svg",
        tag("title", title),
        tag("style", Html(STYLE)),
        tag("rect", class_="paper", width="100%", height="100%", fill="#fff"),
        tag("text", title, x="12", y="20", fill=INK, font_weight="600"),
        *panels,
        xmlns="http://www.w3.org/2000/svg",
        **_size(width, height),
        height=str(height),
        role="img",
        font_family="system-ui, sans-serif",
        font_size="13",
    )
    return body + "\n"


def _size(width: int, height: int) -> dict[str, str]:
    return {"viewBox": f"0 0 {width} {height}", "width": str(width)}


def _inside(chart: Chart) -> list[Html]:
    xs, ys = _values(chart.marks)
    x = scale(chart.x, xs, LEFT, chart.width - RIGHT)
    y = scale(chart.y, ys, chart.height - BOTTOM, TOP)
    # bands lie under lines, lines under points
    order = {Band: 0, Rule: 1, ChartLine: 2, ChartDot: 3}
    drawn = [_mark(mark, x, y) for mark in sorted(chart.marks, key=lambda mark: order[type(mark)])]
    return [*_axes(chart, x, y), *drawn, *_names(chart, x, y)]


def _values(marks: Sequence[Mark]) -> tuple[list[float], list[float]]:
    xs: list[float] = []
    ys: list[float] = []
    for mark in marks:
        match mark:
            case ChartLine(points=points):
                xs += [a for a, _ in points]
                ys += [b for _, b in points]
            case Band(points=spans):
                xs += [a for a, _, _ in spans]
                ys += [value for _, low, high in spans for value in (low, high)]
            case ChartDot():
                ends = [value for value in (mark.low, mark.high) if value is not None]
                xs += [mark.x, *(ends if mark.across else ())]
                ys += [mark.y, *(() if mark.across else ends)]
            case Rule():
                xs += [] if mark.x is None else [mark.x]
                ys += [] if mark.y is None else [mark.y]
    return xs, ys


def _axes(chart: Chart, x: Scale, y: Scale) -> list[Html]:
    bottom, right = chart.height - BOTTOM, chart.width - RIGHT
    rows, columns = y.ticks(36), x.ticks(66)
    grid = [f"M{LEFT} {y(value):.1f}H{right}" for value in rows] + [f"M{x(v):.1f} {bottom}v5" for v in columns]
    beside = (tag("text", word, x=str(LEFT - 7), y=f"{y(v) + 4:.1f}") for v, word in _words(chart.y, rows))
    below = (tag("text", word, x=f"{x(v):.1f}", y=str(bottom + 18)) for v, word in _words(chart.x, columns))
    return [
        tag("path", d="".join(grid), class_="grid", stroke=LINE, fill="none"),
        tag("g", *beside, class_="axis", fill=DIM, text_anchor="end"),
        tag("g", *below, class_="axis", fill=DIM, text_anchor="middle"),
        _text(chart.y.label, 4, 14, "start"),
        _text(chart.x.label, right, chart.height - 5, "end"),
    ]


def _words(axis: Axis, values: Sequence[float]) -> list[tuple[float, str]]:
    """Write ticks; with more digits where a narrow range makes two of them look the same."""
    words = [axis.write(value) for value in values]
    for digits in range(4, 12):
        if len(set(words)) == len(words) or "" in words:
            break
        words = [f"{value:.{digits}g}" for value in values]
    return list(zip(values, words, strict=True))


def _text(words: str, x: float, y: float, anchor: str) -> Html:
    inside = tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
    return tag("g", inside, class_="axis", fill=DIM)


def _mark(mark: Mark, x: Scale, y: Scale) -> Html:
    match mark:
        case ChartLine():
            return _line(mark, x, y)
        case ChartDot():
            return _dot(mark, x, y)
        case Band():
            return _band(mark, x, y)
        case Rule():
            return _rule(mark, x, y)


def _group(mark: ChartLine | ChartDot | Band, *inside: Html) -> Html:
    colour = mark.colour % len(LIGHT)
    fill = LIGHT[colour]
    return tag("g", *inside, class_=f"s{colour}", fill=fill, stroke=fill, data_name=mark.name or None)


def _line(mark: ChartLine, x: Scale, y: Scale) -> Html:
    shown = [x.axis.shows(a) and y.axis.shows(b) for a, b in mark.points]
    places = [f"{x(a):.1f} {y(b):.1f}" for (a, b), here in zip(mark.points, shown, strict=True) if here]
    dash = "4 4" if mark.dashed else DASHES[mark.colour // len(LIGHT) % len(DASHES)]
    path = tag(
        "path",
        d=f"M{'L'.join(places)}" if places else "M0 0",
        fill="none",
        stroke_width="1" if mark.thin else "2.2",
        stroke_dasharray=dash,
        stroke_linejoin="round",
        opacity=".4" if mark.thin else None,
    )
    tips = [
        tag("circle", tag("title", tip), cx=f"{x(a):.1f}", cy=f"{y(b):.1f}", r="3", stroke="none")
        for (a, b), here, tip in zip(mark.points, shown, mark.tips, strict=False)
        if here and tip
    ]
    return _group(mark, path, *tips)


def _dot(mark: ChartDot, x: Scale, y: Scale) -> Html:
    if not (x.axis.shows(mark.x) and y.axis.shows(mark.y)):
        return Html("")
    parts = []
    if mark.low is not None and mark.high is not None:
        # a bar may begin below what a logarithmic axis can show
        along = x if mark.across else y
        low, high = along(mark.low if along.axis.shows(mark.low) else along.low), along(mark.high)
        way = f"M{low:.1f} {y(mark.y):.1f}H{high:.1f}" if mark.across else f"M{x(mark.x):.1f} {low:.1f}V{high:.1f}"
        parts.append(tag("path", d=way, stroke_width="1.6"))
    parts.append(
        tag(
            "circle",
            tag("title", mark.tip) if mark.tip else None,
            cx=f"{x(mark.x):.1f}",
            cy=f"{y(mark.y):.1f}",
            r=f"{_radius(mark):.1f}",
            fill_opacity=".45" if mark.faint or mark.area != 1 else None,
        )
    )
    return _group(mark, *parts)


def _radius(mark: ChartDot) -> float:
    return float(4.5 * mark.area**0.5)


def _band(mark: Band, x: Scale, y: Scale) -> Html:
    there = [f"{x(a):.1f} {y(low):.1f}" for a, low, _ in mark.points]
    back = [f"{x(a):.1f} {y(high):.1f}" for a, _, high in reversed(mark.points)]
    return _group(mark, tag("path", d=f"M{'L'.join([*there, *back])}Z", stroke="none", opacity=".16"))


def _rule(mark: Rule, x: Scale, y: Scale) -> Html:
    words = Html("")
    if mark.diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        way = f"M{x(low):.1f} {y(low):.1f}L{x(high):.1f} {y(high):.1f}"
    elif mark.x is not None:
        way = f"M{x(mark.x):.1f} {y.start:.1f}V{y.stop:.1f}"
        words = _text(mark.label, x(mark.x) + 4, TOP + 10, "start")
    else:
        way = f"M{x.start:.1f} {y(mark.y or 0.0):.1f}H{x.stop:.1f}"
        words = _text(mark.label, x.start + 4, y(mark.y or 0.0) - 5, "start")
    return join(tag("path", d=way, class_="rule", stroke=DIM, stroke_dasharray="4 3"), words if mark.label else None)


def _names(chart: Chart, x: Scale, y: Scale) -> list[Html]:
    """Write names beside points, moved up or down where they would lie on one another."""
    dots = [m for m in chart.marks if isinstance(m, ChartDot) and m.label and x.axis.shows(m.x) and y.axis.shows(m.y)]
    taken: list[tuple[float, float, float]] = []
    parts = []
    for dot in sorted(dots, key=lambda dot: y(dot.y)):
        width, reach = LETTER * len(dot.label), _radius(dot) + 5
        left = x(dot.x) + reach
        end = left + width > chart.width - 4
        left = x(dot.x) - reach - width if end else left
        here = y(dot.y) + (-8 if dot.across else 4)
        shifts = sorted(range(-12, 13), key=abs)
        row = next((here + ROW * n for n in shifts if _free(left, here + ROW * n, width, taken, chart.height)), here)
        taken.append((left, row, width))
        at = {"x": f"{x(dot.x) + (-reach if end else reach):.1f}", "y": f"{row:.1f}"}
        anchor = "end" if end else "start"
        parts.append(tag("text", dot.label, **at, text_anchor=anchor, class_="name", fill=INK, data_name=dot.name))
    return parts


def _free(left: float, row: float, width: float, taken: Sequence[tuple[float, float, float]], height: int) -> bool:
    apart = (abs(row - b) >= ROW or left + width < a or a + w < left for a, b, w in taken)
    return TOP <= row <= height - BOTTOM and all(apart)
