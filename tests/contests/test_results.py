"""Rows: what is compared with what, and what is said of those that cannot be."""

import csv
import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from kinfolk.contests.facts import ended
from kinfolk.contests.groups import Group, group
from kinfolk.contests.outcome import CRASHED, Outcome
from kinfolk.contests.report.files import write
from kinfolk.contests.results import early, rows, to_csv
from kinfolk.contests.screen import summary
from kinfolk.contests.table import CUT, cells, memory, notes, show
from tests.contests.made_up import NASTY, comparison, outcome

COST = (1000, 2e3)


def test_the_measure_that_most_share_makes_the_first_group() -> None:
    outcomes = {
        "bert": [outcome("bert", 0, {"masked-token": [1.0]})],
        "gpt": [outcome("gpt", 0, {"next-token": [1.0], "continuation": [1.0]})],
        "vanilla": [outcome("vanilla", 0, {"continuation": [1.0]})],
        "failed": [Outcome(name="failed", seed=0, status=CRASHED)],
    }
    assert group(outcomes) == [Group("continuation", ("gpt", "vanilla")), Group("masked-token", ("bert",))]
    # without the encoder-decoder both of gpt's measures are as common, and its own comes first
    del outcomes["vanilla"]
    outcomes["gpt2"] = [outcome("gpt2", 0, {"next-token": [1.0], "continuation": [1.0]})]
    assert group(outcomes)[0] == Group("next-token", ("gpt", "gpt2"))
    assert group({}) == []


def test_who_is_right_more_often_comes_first() -> None:
    right = {"a": [0.6, 0.62], "b": [0.9, 0.92]}
    outcomes = {
        name: [outcome(name, seed, {"class": [0.1 * len(right) * x], "accuracy": [x]}) for seed, x in enumerate(values)]
        for name, values in right.items()
    }
    # the loss says otherwise, but is not what people ask for
    assert group(outcomes) == [Group("accuracy", ("a", "b"))]
    first, second = rows(outcomes, dict.fromkeys(right, COST))
    assert (first.name, first.rank, first.measure, first.bits_per_byte) == ("b", 1, "accuracy", None)
    assert (second.name, second.rank, second.mark) == ("a", 2, "*")
    assert first.final == pytest.approx(0.91)


def test_rows_of_a_comparison(tmp_path: Path) -> None:
    table = {row.name: row for row in comparison(tmp_path).rows}
    assert list(table) == ["gpt", "vanilla", "bert", NASTY, "broken"]
    gpt, vanilla, bert = table["gpt"], table["vanilla"], table["bert"]
    assert (gpt.rank, gpt.mark, gpt.measure) == (1, "", "continuation")
    assert (vanilla.rank, vanilla.mark) == (2, "*")
    assert gpt.final == pytest.approx(1.905)
    assert gpt.spread == pytest.approx(0.01 / math.sqrt(2))
    assert gpt.early == pytest.approx(2.9)
    assert gpt.bits_per_byte == pytest.approx(1.905 / math.log(2) / 2)
    assert gpt.growth_bytes == 2 * 10**8
    # alone in its measure: no rank, no code length, and a reason
    assert (bert.rank, bert.bits_per_byte) == (None, None)
    assert "masked-token loss is not a continuation loss" in bert.note
    assert (table[NASTY].seeds, table[NASTY].failed, table[NASTY].final) == (0, 2, None)
    assert "seed 0 diverged: loss is nan at step 3" in table[NASTY].note
    assert "seed 1 crashed: ValueError: x" in table[NASTY].note
    assert table["broken"].note == "no such kind"
    assert comparison(tmp_path).best == "gpt"


def test_a_lost_seed_is_said_and_the_rest_is_ranked() -> None:
    trials = [outcome("a", 0, {"m": [1.0]}), Outcome(name="a", seed=1, status=CRASHED, reason="x")]
    (row,) = rows({"a": trials}, {"a": COST})
    assert (row.rank, row.final, row.seeds, row.failed, row.note) == (1, 1.0, 1, 1, "seed 1 crashed: x")


def test_a_trial_that_the_clock_cut_short_is_marked() -> None:
    whole = outcome("gpt", 0, {"next-token": [3.0, 2.0]})
    short = outcome("gpt2", 1, {"next-token": [3.0, 2.5]}, planned_steps=5)
    crashed = Outcome(name="gpt2", seed=2, status=CRASHED, reason="exit code 1", steps=1, planned_steps=5)
    assert [o.cut_short for o in (whole, short, crashed)] == [False, True, False]
    first, second = rows({"gpt": [whole], "gpt2": [short, crashed]}, {"gpt": (1, 1.0), "gpt2": (1, 1.0)})
    assert (first.cut_short, second.cut_short) == (0, 1)
    assert "cut short by the clock: seed 1 at step 2 of 5" in second.note
    assert [CUT in cells(row)["final"] for row in (first, second)] == [False, True]
    assert any(line.startswith(CUT) for line in notes([first, second]))
    assert not any(line.startswith(CUT) for line in notes([first]))
    assert "2 of 5 steps" in summary(short)
    assert "cut short" in summary(short)
    assert "cut short" not in summary(whole)
    assert ended([whole, short, crashed], 3) == "2 of 3 have finished, 1 crashed, 1 cut short by the clock"


def test_seeds_that_fail_alike_are_said_once() -> None:
    trials = [Outcome(name="a", seed=s, status=CRASHED, reason="why") for s in range(3)]
    (row,) = rows({"a": trials}, {"a": COST})
    assert row.note == "seeds 0, 1, 2 crashed: why"


def test_early_is_the_first_validation_after_a_tenth() -> None:
    trial = outcome("a", 0, {"m": [float(i) for i in range(40)]})
    assert early(trial, "m") == 3.0  # step 4 of 40
    assert early(trial, "other") is None


def test_csv_and_json_say_the_same(tmp_path: Path) -> None:
    made = comparison(tmp_path)
    write(made)
    read = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    plain = json.loads((tmp_path / "results.json").read_text())
    assert [line["name"] for line in read] == [row["name"] for row in plain["rows"]]
    assert float(read[0]["final"]) == plain["rows"][0]["final"]
    assert read[-1]["final"] == ""
    assert len(plain["trials"]) == 8
    assert to_csv([]).startswith("name,rank,final")


def test_an_outcome_comes_back_from_its_file(tmp_path: Path) -> None:
    made = outcome("a", 3, {"m": [1.0, 0.5]})
    made.write(tmp_path)
    assert Outcome.read(tmp_path) == made
    (tmp_path / "result.json").write_text('{"name": "a", "see')
    assert Outcome.read(tmp_path) is None
    assert Outcome.read(tmp_path / "nowhere") is None


def test_on_screen(tmp_path: Path) -> None:
    console = Console(record=True, width=160, file=io.StringIO())
    show(comparison(tmp_path).rows, console)
    text = console.export_text()
    assert NASTY in text
    assert "1.9050 ± 0.0071" in text
    assert "* worse than the best" in text


def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers(tmp_path: Path) -> None:
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, _environ={})
    show(comparison(tmp_path).rows, console)
    text = console.export_text()
    assert "…" not in text
    assert "1.9050 ± 0.0071" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "left out at this width, see the report or --json: " in text
    assert "peak memory" in text.replace("\n", " ")


def test_marks_are_explained_only_where_they_are_used() -> None:
    alone = rows({"a": [outcome("a", 0, {"m": [1.0]})], "b": [outcome("b", 0, {"m": [2.0]})]}, {"a": COST, "b": COST})
    assert notes(alone) == ["1 seed: no test, and a difference may be chance"]
    near = {
        "a": [outcome("a", s, {"m": [1.0 + s]}) for s in (0, 1)],
        "b": [outcome("b", s, {"m": [1.1 + s]}) for s in (0, 1)],
    }
    near["b"][1] = outcome("b", 1, {"m": [1.9]})
    mark, limits = notes(rows(near, {"a": COST, "b": COST}))
    assert mark == "≈ not told apart from the best"
    assert limits.startswith("m: noise floor 0.1 between trials of one contestant; 2 seeds show differences from ")


def test_cells() -> None:
    (row,) = rows({"a": [outcome("a", 0, {"m": [1.0]})]}, {"a": (1_234_567, 2.5e6)})
    said = cells(row)
    assert (said["params"], said["FLOPs/token"], said["final"]) == ("1.23M", "2.5M", "1.0000")
    assert [memory(size) for size in (None, 3e8, 2.5e9)] == ["-", "300 MB", "2.50 GB"]
