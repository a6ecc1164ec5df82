"""The page parses, says everything, reaches for nothing outside itself, and cannot be broken by what it says."""

import dataclasses
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kinfolk.contests.comparison import Card, Comparison
from kinfolk.contests.evidence import Protocol, RateCurve, RateTried
from kinfolk.contests.report.answer import answer, protocol
from kinfolk.contests.report.chooser import criteria
from kinfolk.contests.report.evidence import result
from kinfolk.contests.report.files import write
from kinfolk.contests.report.page import render
from kinfolk.contests.report.rates import forgiving
from kinfolk.report.html import Html, embed, join, tag
from tests.contests.made_up import NASTY, comparison, everything, outcome

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


def test_one_metric_is_named_once_and_several_in_a_column(tmp_path: Path) -> None:
    rows = comparison(tmp_path).rows
    several = result(rows, {})
    assert '<th scope="col" class="text" title="the metric; only rows of one metric are compared">of</th>' in several
    metric = next(row.measure for row in rows if row.rank == 2)
    one = result([row for row in rows if row.measure == metric], {})
    assert f"<h2>Result: {metric}</h2>" in one
    assert ">of</th>" not in one
    # an interval on a line of its own keeps the table as wide as a screen
    assert re.search(r'<span>[+-][\d.]+<small class="interval"> \[', one)


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


def test_a_named_baseline_is_kept_unless_another_is_better(tmp_path: Path) -> None:
    made = comparison(tmp_path)
    beside = dataclasses.replace(made, protocol=Protocol(against="vanilla"))
    assert "Use <strong>gpt</strong>" in render(beside)
    assert "better than the baseline vanilla" in render(beside)
    kept = answer(dataclasses.replace(made, protocol=Protocol(against="gpt")).rows, "gpt")
    assert kept.name == "gpt"
    assert "no contestant is better" in kept.sentence


def test_rates_are_forgiving_by_what_is_better() -> None:
    tried = tuple(
        RateTried(lr=lr, share=0.5, losses={"0": score})
        for lr, score in ((1e-4, 0.78), (3e-4, 0.77), (1e-3, 0.8), (3e-3, 0.1), (1e-2, 0.12))
    )
    for measure, ratio in (("accuracy", 1e-3 / 1e-4), ("next-token", 1e-2 / 3e-3)):
        curve = RateCurve(measure=measure, own=1e-3, chosen=1e-3, tried=tried)
        assert forgiving(curve) == pytest.approx(ratio)


def test_the_chooser_knows_decoding_at_short_and_long_contexts(tmp_path: Path) -> None:
    made = everything(tmp_path)
    slow = dataclasses.replace(
        made.battery["gpt"], latency=0.5, decoding={"256": {"tokens_per_second": 9.0}, "1024": {"state_bytes": 7e6}}
    )
    names = [one.name for one in criteria(dataclasses.replace(made, battery={**made.battery, "gpt": slow}).rows)]
    assert "first token" in names
    assert "tokens/s in decoding at context 256" in names
    # only one contestant has a figure there, so that nothing can be chosen by it
    assert "bytes of state at context 1,024" not in names


def test_of_equals_the_fastest_is_recommended(tmp_path: Path) -> None:
    noisy = [0.0, 0.4, -0.4]
    outcomes = {
        name: tuple(
            outcome(name, s, {"next-token": [2.0 + shift + x * sign]}, tokens_per_second=speed)
            for s, x in enumerate(noisy)
        )
        for name, shift, sign, speed in (("a", 0.0, 1, 100.0), ("b", 0.01, -1, 150.0))
    }
    cards = tuple(Card(name=name) for name in outcomes)
    made = Comparison(folder=tmp_path, title="", facts={}, cards=cards, outcomes=outcomes)
    found = answer(made.rows)
    assert found.name == "b"
    assert "cannot tell a and b apart" in found.sentence


def test_everything_that_was_found_has_a_section(tmp_path: Path) -> None:
    made = everything(tmp_path)
    text = render(made)
    reader = Reader()
    reader.feed(text)
    keys = [attrs.get("id") for name, attrs in reader.seen if name == "section"]
    for key in ("rates", "branches", "sizes", "battery", "costs", "reviewers"):
        assert key in keys
    plain = html.unescape(text)
    for said in (
        "Kendall's tau of the ranks at tiny and small: -1.00",
        "is the highest that was tried",
        f"too long {NASTY}",
        "searched on valid in 16 trials with seeds of their own",
        "level kept over looks at 2 and 4 seeds",
        "Trials of the search for rates (2)",
        "100, 101",
    ):
        assert said in plain
    empty = render(comparison(tmp_path))
    assert not any(f'id="{key}"' in empty for key in ("rates", "branches", "sizes", "battery", "costs"))


def test_protocol_has_five_lines_and_no_break_in_them(tmp_path: Path) -> None:
    for made in (comparison(tmp_path), everything(tmp_path)):
        lines = protocol(made)
        assert [line.partition(":")[0] for line in lines] == [
            "Contestants",
            "Data",
            "Training",
            "Statistics",
            "Machine",
        ]
        assert not any("\n" in line for line in lines)


def test_files_beside_the_page(tmp_path: Path) -> None:
    made = everything(tmp_path)
    old = tmp_path / "figures" / "old.svg"
    old.parent.mkdir()
    old.write_text("")
    write(made)
    names = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert names >= {"curves-next-token-steps", "differences-continuation", "rates-continuation", "budgets", "sizes"}
    assert "old" not in names
    for path in (tmp_path / "figures").iterdir():
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    tex = (tmp_path / "table.tex").read_text()
    assert tex.count(r"\\") == 1 + len(made.rows)
    assert r"\textbf{gpt}" in tex
    assert r"\textless{}/script\textgreater{}\textless{}b\textgreater{}\&" in tex
    assert (tmp_path / "methods.txt").read_text().startswith("We compared gpt, vanilla, bert")


def _with(made: Comparison, outcomes: dict[str, tuple]) -> Comparison:  # type: ignore[type-arg]
    return dataclasses.replace(made, outcomes=outcomes)


def test_tags() -> None:
    assert tag("p", "a < b", class_="x", hidden=True, title=None) == '<p class="x" hidden>a &lt; b</p>'
    assert tag("p", tag("b", "&"), "&") == "<p><b>&amp;</b>&amp;</p>"
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert tag("a", data_x='"') == '<a data-x="&quot;"></a>'
    assert isinstance(join("<", Html("<")), Html)
    assert "</script><" not in embed({"x": "</script><"}, "d").removesuffix("</script>")
