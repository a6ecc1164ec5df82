"""Figures of a page: charts with a legend and a caption, and tabs that need no script."""

from collections.abc import Mapping, Sequence

from kinfolk.report.charts import LIGHT, Chart, draw
from kinfolk.report.html import Html, asset, join, tag

MOST_TABS = 8
"""How many tabs the style sheet can show."""


def figure(chart: Chart | Html, caption: str = "", names: Mapping[str, int] | None = None) -> Html:
    """Return a chart with what a reader must know below it, and above it the colours of `names`."""
    drawn = draw(chart) if isinstance(chart, Chart) else chart
    told = tag("figcaption", caption, class_="dim") if caption else None
    return tag("figure", legend(names) if names else None, drawn, told, class_="chart")


def legend(names: Mapping[str, int]) -> Html:
    """Return names beside their colours; a script makes them buttons that hide and show."""
    entries = (tag("li", swatch(colour), name, data_name=name) for name, colour in names.items())
    return tag("ul", *entries, class_="legend")


def swatch(colour: int) -> Html:
    """Return a dot in a colour of the charts."""
    return tag("span", class_=f"swatch b{colour % len(LIGHT)}")


def tabs(name: str, label: str, panels: Mapping[str, Html]) -> Html:
    """Return panels of which one is shown at a time; one alone is shown as it is."""
    chosen = dict(list(panels.items())[:MOST_TABS])
    if len(chosen) < 2:
        return join(*chosen.values())
    buttons: list[Html] = []
    for i, title in enumerate(chosen):
        key = f"{name}-{i}"
        buttons.append(tag("input", type="radio", name=name, id=key, checked=i == 0))
        buttons.append(tag("label", title, for_=key))
    shown = (tag("div", panel, class_="panel") for panel in chosen.values())
    return tag("div", *buttons, *shown, class_="tabs", role="group", aria_label=label)


def scripts(*more: Html) -> Html:
    """Return the scripts of a page with charts: they only add to what is there without them."""
    return join(*more, tag("script", asset("hover.js")))


def facts(entries: Mapping[str, str]) -> Html:
    """Return names and what is said of each."""
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in entries.items()))


def method(command: str, entries: Mapping[str, str], *more: Html) -> Html:
    """Return the part of a page that says how it was made: the command, the facts of the run, and more."""
    again = tag("p", "The same command goes on where it was stopped, or shows this again:")
    return section(
        "How this was made", again, tag("pre", command, class_="command"), facts(entries), *more, key="method"
    )


def section(title: str, *children: Html | None, key: str) -> Html:
    """Return a part of a page, or nothing where there is nothing to show in it."""
    inside = [child for child in children if child]
    return tag("section", tag("h2", title), *inside, id=key) if inside else Html("")


def bullets(lines: Sequence[str]) -> Html:
    """Return notes below a table or a figure, or nothing."""
    return tag("ul", *(tag("li", line) for line in lines), class_="notes") if lines else Html("")
