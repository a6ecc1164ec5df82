"""A study: what counts as solved, what is written, and that it goes on where it was stopped."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kinfolk.cli.main import main
from kinfolk.contests.acting import study as studies
from kinfolk.contests.acting.curves import draw
from kinfolk.contests.acting.study import Trial, fitted, solved_at, study, summary, table
from kinfolk.core.errors import SpecError, TrainingError
from tests.contests.acting.toy import QUIET, toy


@pytest.mark.parametrize(
    ("values", "found"),
    [([0.5, 0.6], None), ([0.5, 1.0], 20), ([1.0, 1.0], 10), ([1.0, 0.5, 0.95, 1.0], 30), ([1.0, 0.9], None)],
)
def test_solved_is_what_stays_solved(values, found):
    assert solved_at([(10 * (i + 1), v) for i, v in enumerate(values)], 0.95) == found


def trial(name, seed, last, solved):
    return Trial(name, seed, 1234, 5.0, [(10, 0.5), (20, last)], 20 if solved else None)


def test_the_summary_stands_beside_the_paper():
    rows = summary([trial("gtrxl", 0, 1.0, True), trial("gtrxl", 1, 0.5, False), trial("lstm", 0, 0.25, False)])
    assert [(r["name"], r["solved"], r["seeds"], r["return"], r["worst"]) for r in rows] == [
        ("gtrxl", 1, 2, 0.75, 0.5),
        ("lstm", 0, 1, 0.25, 0.25),
    ]
    assert [r["dmlab"] for r in rows] == [117.6, 99.3]
    text = table([trial("gtrxl", 0, 1.0, True), trial("other", 0, 0.5, False)])
    assert "| gtrxl | 1,234 | 1 of 1 | 20 | 1.000 (1.000) | 5 | 117.6 |" in text
    assert "| other | 1,234 | 0 of 1 |  | 0.500 (0.500) | 5 |  |" in text


def test_the_curves_are_a_picture():
    svg = draw({"a<b": [[(10, 0.5), (20, 1.0)], [(10, 0.4), (20, 0.4)]], "c": [[(20, 0.0)]]}, 0.95, "x & y")
    root = ElementTree.fromstring(svg)
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3
    (x0, y0), (x1, y1) = (map(float, pair.split(",")) for pair in lines[0].attrib["points"].split())
    assert x0 < x1
    assert y0 > y1, "more is higher"


def test_a_budget_is_steps_in_the_environment():
    recipe, _ = toy()
    # 5 rows of 6 steps, three updates each
    assert fitted(recipe, 100).training.steps == 9
    with pytest.raises(SpecError, match="a rollout takes 30 steps, more than the budget of 29"):
        fitted(recipe, 29)


def test_a_study_adds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, world = toy("lstm", **{"training.steps": 3})
    made, train = [], studies.train
    monkeypatch.setattr(studies, "train", lambda *a, **k: made.append(k["seed"]) or train(*a, **k))
    first = study({"lstm": recipe}, world, tmp_path, seeds=1, options=QUIET)
    both = study({"lstm": recipe}, world, tmp_path, seeds=2, options=QUIET)
    assert made == [0, 1]
    assert both[0].curve == first[0].curve
    with pytest.raises(TrainingError, match="lstm-0: holds another run"):
        study({"lstm": toy("lstm")[0]}, world, tmp_path, seeds=1, options=QUIET)
    written = json.loads((tmp_path / "study.json").read_text())
    assert [t["seed"] for t in written["trials"]] == [0, 1]
    assert (tmp_path / "curves.svg").exists()
    assert "lstm" in (tmp_path / "table.md").read_text()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "compare",
        "--relatives",
        "lstm,gtrxl",
        "--env",
        "cue-recall:corridor=1",
        "--seeds",
        "1",
        "--out",
        str(tmp_path / "s"),
    ]
    numbers = ["d_model=16", "n_heads=2", "d_ff=16", "n_layers=1", "segment=4", "memory=4"]
    numbers += ["training.batch_size=4", "training.length=4", "training.eval_batches=1"]
    sets = [f"--set={text}" for text in numbers]
    assert main([*words, *sets, "--budget", "32-tokens", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["rows"]] == ["lstm", "gtrxl"]
    assert [t["curve"][-1][0] for t in found["trials"]] == [32, 32]
    assert main([*words, *sets, "--budget", "1m"]) != 0
    assert "steps in the environment: 100k-tokens" in capsys.readouterr().err
