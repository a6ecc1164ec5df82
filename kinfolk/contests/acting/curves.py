"""Learning curves as a picture: one panel for each relative, a line for each seed."""

from collections.abc import Mapping
from html import escape

Curve = list[tuple[int, float]]

WIDTH, HEIGHT, GAP, LEFT, TOP, BOTTOM = 190, 150, 18, 46, 34, 40
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")


def draw(curves: Mapping[str, list[Curve]], threshold: float, title: str) -> str:
    """Return an SVG; all panels share their axes, and the dashed line is where the environment counts as solved."""
    points = [point for seeds in curves.values() for curve in seeds for point in curve]
    most = max(steps for steps, _ in points)
    low, high = min(0.0, *(v for _, v in points)), max(threshold, *(v for _, v in points))
    high += 0.05 * (high - low)
    total = LEFT + len(curves) * (WIDTH + GAP)
    tall = TOP + HEIGHT + BOTTOM

    def place(panel: int, steps: float, value: float) -> tuple[float, float]:
        x = LEFT + panel * (WIDTH + GAP) + WIDTH * steps / most
        return x, TOP + HEIGHT * (1 - (value - low) / (high - low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {tall}" width="{total}" height="{tall}"'
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{total}" height="{tall}" fill="white"/>',
        f'<text x="{LEFT}" y="13" fill="#444">{escape(title)}: mean return of an episode</text>',
    ]
    for panel, (name, seeds) in enumerate(curves.items()):
        colour = COLOURS[panel % len(COLOURS)]
        (left, bottom), (right, top) = place(panel, 0, low), place(panel, most, high)
        parts.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>'
        )
        parts.append(f'<text x="{left:.1f}" y="{top - 5:.1f}" fill="{colour}" font-weight="bold">{escape(name)}</text>')
        y = place(panel, 0, threshold)[1]
        parts.append(
            f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#888" stroke-dasharray="4 3"/>'
        )
        for curve in seeds:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(panel, *point) for point in curve))
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-opacity="0.75"/>')
        parts.append(f'<text x="{right:.1f}" y="{bottom + 14:.1f}" fill="#444" text-anchor="end">{most:,} steps</text>')
    for value in (low, threshold):
        x, y = place(0, 0, value)
        parts.append(f'<text x="{x - 5:.1f}" y="{y + 4:.1f}" fill="#444" text-anchor="end">{value:g}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
