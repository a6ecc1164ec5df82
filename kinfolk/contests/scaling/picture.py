"""A scaling law as a picture: losses as dots, the law through them, and where it leads, in both variables."""

import html
import math
from collections.abc import Callable, Iterator, Sequence

from kinfolk.contests.budget import amount
from kinfolk.contests.scaling.law import Law, Measured, Range

WIDTH, HEIGHT, LEFT, TOP, GAP = 340, 260, 56, 44, 70
BEYOND = 10.0
"""The law is drawn as far as this many times the largest that was trained."""
COLOURS = ("#3b6fb6", "#c8553d", "#3f8f5b", "#8a5bb0", "#b58900", "#2a9d9d", "#a0486f")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 } .axis, .grid { stroke: #999; stroke-width: 1; fill: none }
.grid { stroke: #ddd } .law { fill: none; stroke-width: 2 } .beyond { stroke-dasharray: 4 4 } .band { opacity: .15 }
@media (prefers-color-scheme: dark) { svg { background: #16181c } text { fill: #ddd } .grid { stroke: #333 } }
"""


def picture(title: str, points: Sequence[Measured], law: Law) -> str:
    """Return an SVG with one panel for each variable of the law, the other variable as colours."""
    panels = [_panel(variable, points, law, i) for i, variable in enumerate(law.variables)]
    width = LEFT + len(panels) * (WIDTH + GAP) + 40
    body = "".join(panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + TOP + 60}" role="img">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
        f'<text x="{LEFT}" y="20" style="font-weight:600">{html.escape(title)}</text>{body}</svg>\n'
    )


def _panel(variable: str, points: Sequence[Measured], law: Law, index: int) -> str:
    other = {"params": "tokens", "tokens": "params"}[variable]
    xs = [getattr(p, variable) for p in points]
    low, high = min(xs) / 1.3, max(xs) * BEYOND
    groups = sorted({getattr(p, other) for p in points})
    curves = {g: [(x, law.at(**{variable: x, other: g})) for x in _steps(low, high)] for g in groups}
    ys = [p.loss for p in points] + [r.value for curve in curves.values() for _, r in curve]
    place = _Place(low, high, min(ys) * 0.97, max(ys) * 1.03, LEFT + index * (WIDTH + GAP))
    drawn = [*_axes(variable, place)]
    for i, (group, curve) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        drawn += _curve(curve, max(xs), colour, place)
        drawn += [_dot(place, getattr(p, variable), p.loss, colour) for p in points if getattr(p, other) == group]
        if len(groups) > 1:
            drawn.append(_label(f"{amount(group, 3)} {other}", place.x0 + WIDTH - 4, TOP + 14 + 15 * i, colour))
    return "".join(drawn)


class _Place:
    """From numbers to places on the page, logarithmic in both."""

    def __init__(self, low: float, high: float, bottom: float, top: float, x0: float) -> None:
        self.low, self.high, self.bottom, self.top, self.x0 = low, high, bottom, top, x0

    def x(self, value: float) -> float:
        return self.x0 + WIDTH * math.log(value / self.low) / math.log(self.high / self.low)

    def y(self, value: float) -> float:
        value = min(max(value, self.bottom), self.top)
        return TOP + HEIGHT - HEIGHT * math.log(value / self.bottom) / math.log(self.top / self.bottom)


def _axes(variable: str, place: _Place) -> Iterator[str]:
    yield f'<rect class="axis" x="{place.x0}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>'
    for value in _decades(place.low, place.high):
        x = place.x(value)
        yield f'<path class="grid" d="M{x:.1f} {TOP}V{TOP + HEIGHT}"/>'
        yield f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{amount(value, 3)}</text>'
    for i in range(5):
        value = place.bottom * (place.top / place.bottom) ** (i / 4)
        y = place.y(value)
        yield f'<path class="grid" d="M{place.x0} {y:.1f}h{WIDTH}"/>'
        yield f'<text x="{place.x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    middle = place.x0 + WIDTH / 2
    name = {"params": "parameters outside tables", "tokens": "tokens learnt from"}[variable]
    yield f'<text x="{middle}" y="{TOP + HEIGHT + 36}" text-anchor="middle">{name} · loss in nats</text>'


def _curve(curve: Sequence[tuple[float, Range]], last: float, colour: str, place: _Place) -> Iterator[str]:
    def line(pairs: Sequence[tuple[float, Range]], value: Callable[[Range], float]) -> str:
        return "L".join(f"{place.x(x):.1f} {place.y(value(r)):.1f}" for x, r in pairs)

    back = curve[::-1]
    band = f"M{line(curve, lambda r: r.low)}L{line(back, lambda r: r.high)}Z"
    yield f'<path class="band" fill="{colour}" d="{band}"/>'
    seen, beyond = [c for c in curve if c[0] <= last], [c for c in curve if c[0] >= last]
    for kind, pairs in (("law", seen), ("law beyond", beyond)):
        if len(pairs) > 1:
            yield f'<path class="{kind}" stroke="{colour}" d="M{line(pairs, lambda r: r.value)}"/>'


def _dot(place: _Place, x: float, loss: float, colour: str) -> str:
    told = f"<title>{amount(x, 3)}: {loss:.4f}</title>"
    return f'<circle cx="{place.x(x):.1f}" cy="{place.y(loss):.1f}" r="3.5" fill="{colour}">{told}</circle>'


def _label(text: str, x: float, y: float, colour: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="end" style="fill:{colour}">{html.escape(text)}</text>'


def _steps(low: float, high: float, n: int = 48) -> list[float]:
    return [low * (high / low) ** (i / (n - 1)) for i in range(n)]


def _decades(low: float, high: float) -> Iterator[float]:
    for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1):
        yield 10.0**power
