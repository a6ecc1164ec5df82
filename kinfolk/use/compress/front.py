"""The front of quality, speed and size as a picture and a page: what can be had for what."""

import html
import math
from collections.abc import Sequence

from kinfolk.report.html import Html, asset, tag
from kinfolk.report.html import page as html_page
from kinfolk.use.compress.search import Search, Tried

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 660, 360, 70, 46, 52, 30
COLOUR = {"front": "#2563eb", "beaten": "#9ca3af", "chosen": "#059669", "first": "#c8553d"}
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 } .grid { stroke: #ddd } .axis { stroke: #999; fill: none }
.small { font-size: 10px } .goal { stroke: #888; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) { svg { background: #16181c } text { fill: #ddd } .grid { stroke: #333 } }
"""
LINE, LETTER = 11, 5.5
CUT = 1.0
"""What is worse by more than this share is drawn at the edge."""


def picture(found: Search, title: str) -> str:
    """Return an SVG: speed to the right, loss of quality upwards, the area of a dot the size of the model."""
    rows = [(found.first.speed, 0.0, found.first.bytes)]
    rows += [(one.measured.speed, found.cost(one), one.measured.bytes) for one in found.tried]
    place = _Place([row[0] for row in rows], [row[1] for row in rows])
    front, chosen = found.front(), found.chosen
    drawn, names = [*_axes(place, found)], []
    for one in sorted(found.tried, key=lambda one: (one in front, one is chosen)):
        kind = "chosen" if one is chosen else "front" if one in front else "beaten"
        drawn.append(_dot(place, one.measured.speed, found.cost(one), one.measured.bytes / found.first.bytes, kind))
        if kind != "beaten":
            names.append(one)
    drawn.append(_dot(place, 1.0, 0.0, 1.0, "first"))
    writer = _Names(place)
    drawn += [writer.write(one, found.cost(one)) for one in sorted(names, key=found.cost)]
    size = f"0 0 {LEFT + WIDTH + RIGHT} {TOP + HEIGHT + BOTTOM}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" role="img"><title>{html.escape(title)}</title>'
        f'<style>{STYLE}</style><text x="{LEFT}" y="20" style="font-weight:600">{html.escape(title)}</text>'
        f"{''.join(drawn)}</svg>\n"
    )


def page(found: Search, title: str) -> str:
    """Return a page with the picture and the table: one file, nothing loaded from elsewhere."""
    style = asset("page.css")
    columns = table(found)
    heads = tag("tr", *(tag("th", name, scope="col") for name in columns[0]))
    body = (
        tag("tr", *(tag("td", cell) for cell in row), class_="best" if one is found.chosen else None)
        for one, row in zip([None, *found.tried], columns[1:], strict=True)
    )
    refused = [tag("li", f"{name}: {why}") for name, why in found.refused.items()]
    main = tag(
        "main",
        tag("p", "Kinfolk · compression", class_="eyebrow"),
        tag("h1", title),
        tag("p", found.sentence(), class_="verdict"),
        Html(picture(found, title)),
        tag("div", tag("table", tag("thead", heads), tag("tbody", *body)), class_="scroll"),
        tag("ul", *refused, class_="notes") if refused else None,
    )
    return html_page(title, style, main)


def table(found: Search) -> list[tuple[str, ...]]:
    """Return the names of columns and a row for each try, the model as it was trained first."""
    front, quality = found.front(), found.first.quality[0]
    rows: list[tuple[str, ...]] = [("steps", "speed", "size MB", "memory MB", quality, "worse", "")]
    whole = found.first
    rows.append(("as trained", "1.00 x", *_sizes(whole.bytes, whole.memory), f"{whole.quality[1]:.4f}", "", ""))
    for one in found.tried:
        m = one.measured
        mark = "chosen" if one is found.chosen else "front" if one in front else ""
        worse = f"{100 * found.cost(one):+.1f} %"
        steps = ", ".join(map(str, one.steps))
        rows.append((steps, f"{m.speed:.2f} x", *_sizes(m.bytes, m.memory), f"{m.quality[1]:.4f}", worse, mark))
    return rows


def _sizes(size: int, memory: int) -> tuple[str, str]:
    return f"{size / 1e6:.2f}", f"{memory / 1e6:.1f}"


class _Place:
    """From numbers to places on the page: speed by its logarithm, losses by their root, which spreads small ones."""

    def __init__(self, speeds: Sequence[float], costs: Sequence[float]) -> None:
        self.low, self.high = min(0.9, *speeds) / 1.05, max(1.2, *speeds) * 1.1
        self.most = min(CUT, max(0.02, *(cost for cost in costs if math.isfinite(cost)))) * 1.1

    def x(self, speed: float) -> float:
        return LEFT + WIDTH * math.log(speed / self.low) / math.log(self.high / self.low)

    def y(self, cost: float) -> float:
        share = min(max(cost, 0.0), self.most) / self.most
        return TOP + HEIGHT * math.sqrt(share)


def _axes(place: _Place, found: Search) -> list[str]:
    drawn = [f'<rect class="axis" x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>']
    for speed in (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12):
        if place.low < speed < place.high:
            x = place.x(speed)
            drawn.append(f'<path class="grid" d="M{x:.1f} {TOP}V{TOP + HEIGHT}"/>')
            drawn.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{speed:g} x</text>')
    for cost in (0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0):
        if cost <= place.most:
            y = place.y(cost)
            drawn.append(f'<path class="grid" d="M{LEFT} {y:.1f}h{WIDTH}"/>')
            drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * cost:g} %</text>')
    if found.goal.speed > 1 and found.goal.speed < place.high:
        drawn.append(f'<path class="goal" d="M{place.x(found.goal.speed):.1f} {TOP}V{TOP + HEIGHT}"/>')
    drawn.append(f'<path class="goal" d="M{LEFT} {place.y(found.allowed):.1f}h{WIDTH}"/>')
    told = f"speed of a forward pass · down: worse in {found.first.quality[0]} · area: bytes of weights"
    drawn.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 38}" text-anchor="middle">{html.escape(told)}</text>'
    )
    return drawn


def _dot(place: _Place, speed: float, cost: float, size: float, kind: str) -> str:
    told = f"<title>{speed:.2f} x, {100 * cost:+.1f} %, {100 * size:.0f} % of the size</title>"
    where = f'cx="{place.x(speed):.1f}" cy="{place.y(cost):.1f}" r="{2.5 + 8 * math.sqrt(size):.1f}"'
    return f'<circle {where} fill="{COLOUR[kind]}" fill-opacity="0.7">{told}</circle>'


class _Names:
    """Names of dots, moved up or down where they would lie on one another."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.taken: list[tuple[float, float, float]] = []

    def write(self, one: Tried, cost: float) -> str:
        """Return the name beside its dot."""
        text = ", ".join(map(str, one.steps))
        x, y, wide = self.place.x(one.measured.speed), self.place.y(cost) + 3, LETTER * len(text)
        anchor = "end" if x + 12 + wide > LEFT + WIDTH else "start"
        left = x - 12 - wide if anchor == "end" else x + 12
        shifts = sorted(range(-20, 21), key=abs)
        y = next((y + LINE * n for n in shifts if self._free(left, y + LINE * n, wide)), y)
        self.taken.append((left, y, wide))
        where = f'x="{x + (-12 if anchor == "end" else 12):.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        return f'<text class="small" {where}>{html.escape(text)}</text>'

    def _free(self, left: float, y: float, wide: float) -> bool:
        inside = TOP + LINE <= y <= TOP + HEIGHT
        apart = (abs(y - b) >= LINE or left + wide < a or a + w < left for a, b, w in self.taken)
        return inside and all(apart)
