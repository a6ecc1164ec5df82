"""Ours beside a published table: differences, ranks, verdicts, and a whole run of two rows to its report."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from kinfolk.cli.main import main
from kinfolk.contests.comparison import Card, Comparison
from kinfolk.contests.contestants import gather_rows
from kinfolk.contests.published import EQUAL, FAILS, HOLDS, UNCLEAR, Beside, Line, spearman
from kinfolk.contests.published_table import show_beside, show_rows
from kinfolk.contests.report.files import write
from kinfolk.contests.report.page import render
from kinfolk.contests.settings import Settings
from kinfolk.core.errors import SpecError
from kinfolk.family.tables import table
from kinfolk.runs.fit import Needs
from tests.contests.made_up import outcome

# published: GeGLU better by 0.046, ELU worse by 0.094, GeLU equal, Swish worse by 0.009, no final loss of the last
LOSSES = {
    "Vanilla Transformer": [2.0, 2.01, 1.99],
    "GeLU": [1.5, 1.51, 1.49],
    "Swish": [2.0, 2.02, 1.99],
    "ELU": [1.8, 1.81, 1.79],
    "GeGLU": [1.7, 1.71, 1.69],
    "+ Factorized & shared embeddings": [2.5, 2.51, 2.49],
}


def comparison(folder: Path, seeds: int = 3, losses: dict[str, list[float]] = LOSSES) -> Comparison:
    trials = {
        name: tuple(outcome(name, i, {"span-token": [final + 1, final]}) for i, final in enumerate(finals[:seeds]))
        for name, finals in losses.items()
    }
    cards = tuple(Card(name=name, params=1000, flops_per_token=10.0) for name in losses)
    missing = (("Evolved Transformer", "not there yet"),)
    return Comparison(
        folder=folder, title="t", facts={}, cards=cards, outcomes=trials, table="narang", unavailable=missing
    )


def test_rows_are_held_against_the_baseline_of_their_own_side(tmp_path: Path) -> None:
    found = comparison(tmp_path).beside
    assert found is not None
    lines = {line.name: line for line in found.lines}
    assert list(lines) == list(LOSSES)
    geglu = lines["GeGLU"]
    assert geglu.final == pytest.approx(-0.3)
    assert (geglu.final_published, geglu.early_published, geglu.params_published) == (-0.046, -0.052, 1.0)
    assert geglu.speed_published == pytest.approx(3.55 / 3.50, abs=1e-6)
    assert (geglu.rank, geglu.rank_published) == (2, 1)
    assert {name: line.holds for name, line in lines.items()} == {
        "Vanilla Transformer": "",
        "GeLU": EQUAL,
        "Swish": UNCLEAR,
        "ELU": FAILS,
        "GeGLU": HOLDS,
        "+ Factorized & shared embeddings": "",
    }
    # what cannot be read in the source has no rank and no direction
    assert lines["+ Factorized & shared embeddings"].rank is None
    assert lines["+ Factorized & shared embeddings"].early_published == pytest.approx(0.725)
    value, n = found.correlations["the final loss"]
    assert n == 5
    # ours: GeLU GeGLU ELU vanilla Swish; theirs: GeGLU, vanilla and GeLU, Swish, ELU
    assert value == pytest.approx(spearman([4, 1, 5, 3, 2], [2.5, 2.5, 4, 5, 1]))
    assert "holds for 1 of 3 rows, fails for 1, and cannot be told for 1" in found.sentences()[0]
    assert found.sentences()[-1] == "Evolved Transformer: not available: not there yet"


def test_one_seed_goes_by_the_sign_and_says_so(tmp_path: Path) -> None:
    found = comparison(tmp_path, seeds=1).beside
    assert found is not None
    assert {line.name: line.holds for line in found.lines}["ELU"] == FAILS
    assert all(line.p is None for line in found.lines)
    assert "with one seed there is no test" in found.sentences()[0]


def test_without_a_baseline_nothing_is_claimed(tmp_path: Path) -> None:
    without = {name: finals for name, finals in LOSSES.items() if name != "Vanilla Transformer"}
    found = comparison(tmp_path, losses=without | {"Vanilla Transformer": []}).beside
    assert found is not None
    assert all(not line.holds and line.final is None for line in found.lines)
    assert found.correlations == {}


def test_rank_correlation_by_hand() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # one minus six times the squared differences over n (n^2 - 1): 1 - 6 * 2 / 60
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_the_same_in_every_form(tmp_path: Path) -> None:
    made = comparison(tmp_path)
    page = render(made)
    assert 'id="published"' in page
    assert "Evolved Transformer: not available: not there yet" in page
    write(made)
    rows = list(csv.DictReader((tmp_path / "published.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["name"] for row in rows] == [*LOSSES, "Evolved Transformer"]
    assert (rows[4]["final_published"], rows[4]["holds"], rows[-1]["unavailable"]) == ("-0.046", "yes", "not there yet")
    plain = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["published"]
    assert plain["lines"][4]["holds"] == "yes"
    assert plain["unavailable"] == [["Evolved Transformer", "not there yet"]]
    screen = Console(file=io.StringIO(), width=140)
    assert made.beside is not None
    show_beside(made.beside, screen)
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "-0.300 | -0.046" in said
    assert "not available: not there yet" in said


def test_what_is_not_quite_theirs_is_said(tmp_path: Path) -> None:
    assert comparison(tmp_path).beside.differs == ()  # type: ignore[union-attr]
    found = comparison(tmp_path, losses=LOSSES | {"Dynamic convolution": [2.2, 2.2, 2.3]}).beside
    assert found is not None
    assert [name for name, _ in found.differs] == ["Dynamic convolution"]
    assert any(said.startswith("Dynamic convolution: not quite theirs: ") for said in found.sentences())


def test_a_comparison_without_a_table_has_none_of_it(tmp_path: Path) -> None:
    import dataclasses

    plain = dataclasses.replace(comparison(tmp_path), table="")
    assert plain.beside is None
    assert "published" not in plain.to_plain()
    assert 'id="published"' not in render(plain)


@pytest.mark.parametrize(("table", "body"), [("modern", "Llama body"), ("narang", "Vanilla Transformer"), ("", "")])
def test_the_rows_of_a_table_are_held_against_the_one_they_change(table: str, body: str) -> None:
    assert Settings(table=table).baseline == body
    assert Settings(table=table, against="best").baseline == ""
    assert Settings(table=table, against="gpt2").baseline == "gpt2"


def test_rows_that_cannot_be_run_are_named() -> None:
    found, missing = gather_rows("narang", "", "tiny")
    rows = table("narang").rows
    assert len(found) + len(missing) == len(rows)
    assert {name for name, _ in missing} >= {row.name for row in rows if row.change is None}
    assert dict(missing)["8 layers, d_ff = 4608, H = 18"] == "8 of 12 layers cannot be scaled to a model of 2"
    # a number of the baseline may be set for all
    deeper, _ = gather_rows("narang", "8-layers", "tiny", ["n_layers=3", "training.length=33"])
    assert [len(each.recipe(Needs(50)).model.encoder.order) for each in deeper] == [3, 2]  # type: ignore[union-attr]
    assert deeper[1].recipe(Needs(50)).training.length == 33
    parent = deeper[1].parent(Needs(50))
    assert parent is not None
    assert parent.name == "Vanilla Transformer"
    assert deeper[0].parent(Needs(50)) is None
    assert deeper[1].scalable


def test_the_listing_names_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--table", "narang", "--rows", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["key"] for row in listed] == [row.key for row in table("narang").rows]
    screen = Console(file=io.StringIO(), width=200)
    show_rows(table("narang"), screen)
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert all(row.key in said for row in table("narang").rows)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"table": "narang", "rows": "geglo"}, "row 'geglo' of narang: unknown; did you mean 'geglu'"),
        ({"table": "narrang"}, "table 'narrang': unknown; did you mean 'narang'"),
        ({"rows": "8"}, r"rows '8': of which table\? \(known: narang, modern\)"),
        ({"table": "narang", "contestants": ("gpt",)}, "has contestants of its own, found gpt"),
        ({"table": "narang", "size": "tinny"}, "size: unknown choice 'tinny'; did you mean 'tiny'"),
    ],
)
def test_refusals(asked: dict[str, str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        gather_rows(Settings(**asked).table, "", asked.get("size", "tiny"))  # type: ignore[arg-type]


@pytest.mark.long
def test_two_rows_run_to_their_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["d_model=16", "n_heads=2", "d_ff=32", "n_layers=1", "training.eval_batches=1", "training.length=64"]
    sets = [word for each in small for word in ("--set", each)]
    asked = ["--budget", "3k-tokens", "--seeds", "1", "--tune", "off", "--jobs", "2", "--threads", "1", "--nice", "0"]
    out = ["--out", str(tmp_path / "run"), "--data", "copy", "--set", "training.batch_size=8"]
    assert main(["compare", "--table", "narang", "--rows", "geglu,funnel,8-layers", *asked, *out, *sets]) == 0
    said = capsys.readouterr().out
    assert "Vanilla Transformer" in said
    assert "The published direction of the final loss holds for" in said
    assert "8 layers, d_ff = 4608, H = 18: not available: 8 of 12 layers cannot be scaled to a model of 1" in (
        " ".join(said.split())
    )
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    # pairs are translated, not filled in
    assert {row["measure"] for row in results["rows"]} >= {"target-token"}
    assert [line["name"] for line in results["published"]["lines"]][:2] == ["Vanilla Transformer", "GeGLU"]
    assert results["published"]["lines"][1]["holds"] in (HOLDS, FAILS)
    assert 'id="published"' in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_without_published_figures_nothing_is_said_to_hold() -> None:
    nothing = Beside(title="t", paper="p", baseline="b", lines=(Line(name="b"), Line(name="c")), correlations={})
    (sentence,) = nothing.sentences()
    assert "0 of 0" not in sentence
    assert "No final loss was published" in sentence
