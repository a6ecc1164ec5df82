"""The page parses, says everything, reaches for nothing outside itself, and cannot be broken by what it says."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.report.page import render
from kinfolk.report.html import Html, embed, join, tag
from tests.contests.made_up import NASTY, comparison

VOID = ("meta", "link", "br", "hr", "input")


class Reader(HTMLParser):
    """Collects text and attributes, and insists that elements are closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text: dict[str, str] = {}
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        self.text[where] = self.text.get(where, "") + data + "\n"


@pytest.fixture
def page(tmp_path: Path) -> Reader:
    reader = Reader()
    reader.feed(render(comparison(tmp_path)))
    reader.close()
    return reader


def test_every_element_is_closed(page: Reader) -> None:
    assert page.open == []
    assert [name for name, _ in page.seen[:2]] == ["html", "head"]


def test_contestants_failures_specs_and_the_command_are_there(page: Reader, tmp_path: Path) -> None:
    made = comparison(tmp_path)
    everything = "\n".join(page.text.values())
    for card in made.cards:
        assert card.name in page.text["th"]
        assert card.problem in everything
    assert made.facts["command"] in page.text["pre"]
    assert "loss is nan at step 3" in page.text["pre"]
    assert f"x = '{NASTY}'" in page.text["pre"]
    assert "gpt" in page.text["strong"]


def test_nothing_is_loaded_from_elsewhere(page: Reader, tmp_path: Path) -> None:
    named = [attrs[key] for _, attrs in page.seen for key in ("src", "href", "action") if key in attrs]
    # an icon of no bytes, so that none is asked for
    assert named == ["data:,"]
    assert not re.search(r"@import|url\(", page.text["style"])
    assert "http" not in render(comparison(tmp_path))
    assert not re.search(r"\b(fetch|XMLHttpRequest|import)\s*\(", page.text["script"])


def test_what_is_said_cannot_break_out(page: Reader, tmp_path: Path) -> None:
    # the numbers of the chooser, its script, and that of the charts
    assert [name for name, _ in page.seen].count("script") == 3
    assert "b" not in [name for name, _ in page.seen]
    assert f"a title {NASTY}" in page.text["title"]
    assert not any(key.startswith("on") for _, attrs in page.seen for key in attrs)


def test_every_metric_has_a_chart_that_needs_no_script(tmp_path: Path) -> None:
    text = render(comparison(tmp_path))
    charts = re.findall(r"(?s)<svg.*?</svg>", text)
    for chart in charts:
        assert chart.startswith("<svg")
        assert 'role="img"' in chart
        assert "<title>" in chart
    for metric in ("continuation", "masked-token", "next-token"):
        for used in ("steps", "tokens", "seconds of training", "floating-point operations"):
            assert any(f"{metric} loss against {used}" in chart for chart in charts)
    assert len(text) < 100_000


def test_columns_explain_themselves(page: Reader) -> None:
    heads = {attrs.get("title") for name, attrs in page.seen if name == "th"}
    assert "training speed on this machine" in heads
    assert "training speed on this machine" in page.text["dd"]


def test_the_chooser_has_the_figures_of_ranked_contestants(tmp_path: Path) -> None:
    found = re.search(r'<script type="application/json" id="criteria">(.*?)</script>', render(comparison(tmp_path)))
    assert found
    data = json.loads(found[1])
    assert data["names"] == ["gpt", "vanilla"]
    loss = data["criteria"][0]
    assert (loss["name"], loss["most"]) == ("continuation loss", True)
    assert loss["values"] == pytest.approx({"gpt": 1.905, "vanilla": 2.505})
    assert loss["words"]["gpt"] == "1.9050"


def test_verdicts(tmp_path: Path) -> None:
    made = comparison(tmp_path)
    assert "other contestant is worse by more than chance" in render(made)
    one_seed = {name: trials[:1] for name, trials in made.outcomes.items()}
    assert "with one seed that may be chance" in render(_with(made, one_seed))
    assert "No trial finished" in render(_with(made, {NASTY: made.outcomes[NASTY]}))


def _with(made: Comparison, outcomes: dict[str, tuple]) -> Comparison:  # type: ignore[type-arg]
    import dataclasses

    return dataclasses.replace(made, outcomes=outcomes)


def test_tags() -> None:
    assert tag("p", "a < b", class_="x", hidden=True, title=None) == '<p class="x" hidden>a &lt; b</p>'
    assert tag("p", tag("b", "&"), "&") == "<p><b>&amp;</b>&amp;</p>"
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert tag("a", data_x='"') == '<a data-x="&quot;"></a>'
    assert isinstance(join("<", Html("<")), Html)
    assert "</script><" not in embed({"x": "</script><"}, "d").removesuffix("</script>")
