"""Charts: values are where their scale puts them, files are SVG that needs nothing, and names stay text."""

import itertools
from xml.etree import ElementTree

import pytest

from kinfolk.report.axes import Axis, scale
from kinfolk.report.charts import LIGHT, Band, Chart, ChartDot, ChartLine, Mark, Rule, draw, file
from kinfolk.report.figures import figure, tabs
from kinfolk.report.html import Html
from kinfolk.report.numbers import amount, memory, tick
from kinfolk.report.tables import Column, table

NASTY = "</svg><script>&\"'"
SPACE = "{http://www.w3.org/2000/svg}"


def made(*marks: Mark, **axes: str) -> Chart:
    x, y = Axis(label="x", scale=axes.get("x", "linear")), Axis(label="y", scale=axes.get("y", "linear"))  # type: ignore[arg-type]
    return Chart(title=NASTY, x=x, y=y, marks=marks)


def test_scales_put_values_in_order_and_decades_apart_evenly() -> None:
    linear = scale(Axis(label=""), [0, 10], 0, 100)
    assert linear(0) == 0
    assert 90 < linear(10) < 100
    log = scale(Axis(label="", scale="log"), [1, 100], 0, 100)
    assert log(10) == pytest.approx((log(1) + log(100)) / 2)
    root = scale(Axis(label="", scale="root"), [0, 1], 0, 100)
    assert root(0.25) == pytest.approx(root(1) / 2)
    down = scale(Axis(label="", descending=True), [1, 2], 0, 100)
    assert down(1) > down(2)
    # what is beyond the range is at its end, as a bar that is cut off
    assert log(1e-9) == 0


@pytest.mark.parametrize("kind", ["linear", "log", "root"])
@pytest.mark.parametrize("values", [(0.001, 3000.0), (2.31, 2.34), (5.0, 5.0), (1.0, 2.0)])
def test_ticks_are_round_inside_and_apart(kind: str, values: tuple[float, float]) -> None:
    found = scale(Axis(label="", scale=kind), values, 0, 500)  # type: ignore[arg-type]
    ticks = found.ticks(60)
    assert len(ticks) >= 1
    places = [found(value) for value in ticks]
    assert all(b - a >= 60 for a, b in itertools.pairwise(places))
    assert all(found.low <= value <= found.high for value in ticks)


def test_ticks_of_a_narrow_range_are_told_apart() -> None:
    root = ElementTree.fromstring(file("", [made(ChartLine(points=[(1, 2.0001), (2, 2.0009)]))]))
    written = [text.text for text in root.findall(f".//{SPACE}g[@text-anchor='end']/{SPACE}text")]
    assert len(written) > 2
    assert len(set(written)) == len(written)


def test_an_axis_without_values_is_drawn() -> None:
    assert "<svg" in draw(made())
    assert "nan" not in draw(made(ChartLine(points=[(1, float("nan")), (2, 1.0)], tips=("a", "b"))))


def test_a_file_holds_every_mark_of_every_panel_and_its_text_is_text() -> None:
    marks: list[Mark] = [
        ChartLine(points=[(1, 2), (2, 4)], tips=(NASTY, "b"), name=NASTY, colour=9),
        ChartDot(x=1, y=3, low=2, high=4, label=NASTY, tip="t", colour=1),
        ChartDot(x=1, y=3, low=0.5, high=1.5, across=True, colour=1),
        Band(points=[(1, 1, 2), (2, 2, 3)]),
        Rule(y=2, label="goal"),
        Rule(diagonal=True),
    ]
    root = ElementTree.fromstring(file("two panels", [made(*marks), made(*marks, x="log", y="log")]))
    assert len(root.findall(f"{SPACE}svg")) == 2
    assert len(root.findall(f".//{SPACE}circle")) == 2 * 4
    assert root.find(f".//{SPACE}script") is None
    assert [t.text for t in root.findall(f".//{SPACE}circle/{SPACE}title")].count(NASTY) == 2
    groups = {g.get("class"): g.get("fill") for g in root.findall(f".//{SPACE}g") if g.get("data-name")}
    # the ninth contestant shares the colour of the first and has a dash of its own
    assert groups["s1"] == LIGHT[1]
    assert 'stroke-dasharray="6 4"' in file("", [made(*marks)])


def test_higher_is_further_up() -> None:
    root = ElementTree.fromstring(file("", [made(ChartLine(points=[(1, 1), (2, 5)]))]))
    path = root.find(f".//{SPACE}g[@class='s0']/{SPACE}path")
    assert path is not None
    (x0, y0), (x1, y1) = (map(float, pair.split()) for pair in str(path.get("d"))[1:].split("L"))
    assert x0 < x1
    assert y0 > y1


def test_names_of_points_do_not_lie_on_one_another() -> None:
    root = ElementTree.fromstring(file("", [made(*(ChartDot(x=1, y=1 + i / 1000, label="name") for i in range(5)))]))
    rows = sorted(float(str(t.get("y"))) for t in root.findall(f".//{SPACE}text[@class='name']"))
    assert len(rows) == 5
    assert all(b - a >= 14 for a, b in itertools.pairwise(rows))


def test_numbers() -> None:
    assert [amount(2.5e6), amount(999, 3), tick(1e15), tick(3e-4), memory(0), memory(2.5e9)] == [
        "2.5M",
        "999",
        "1.0e15",
        "3e-4",
        "-",
        "2.50 GB",
    ]


def test_tables_and_tabs() -> None:
    text = table([Column("a", "what a is"), "b"], [["<x>", "1"]])
    assert 'title="what a is"' in text
    assert "<dd>what a is</dd>" in text
    assert "&lt;x&gt;" in text
    assert 'data-label="b"' in text
    with pytest.raises(ValueError, match="zip"):
        table(["a"], [["1", "2"]])
    two = tabs("t", "which", {"one": Html("1"), "two": Html("2")})
    assert two.count('type="radio"') == 2
    assert two.count(" checked") == 1
    assert tabs("t", "which", {"one": Html("1")}) == "1"
    assert figure(Html("<svg></svg>"), names={NASTY: 3}).count("<li") == 1
