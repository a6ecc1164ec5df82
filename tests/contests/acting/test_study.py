"""A study: what counts as solved, what is written, and that it goes on where it was stopped."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kinfolk.cli.main import main
from kinfolk.contests import trials
from kinfolk.contests.acting.study import ActingStudy, fitted, run, solved_at, summary, table
from kinfolk.contests.outcome import DONE, Outcome, Point
from kinfolk.contests.settings import Settings
from kinfolk.core.errors import SpecError
from tests.contests.acting.toy import toy


@pytest.mark.parametrize(
    ("values", "found"),
    [([0.5, 0.6], None), ([0.5, 1.0], 20), ([1.0, 1.0], 10), ([1.0, 0.5, 0.95, 1.0], 30), ([1.0, 0.9], None)],
)
def test_solved_is_what_stays_solved(values, found):
    assert solved_at([(10 * (i + 1), v) for i, v in enumerate(values)], 0.95) == found


def trial(name, seed, last):
    curve = tuple(
        Point(step=i, tokens=10 * i, seconds=1.0, flops=1.0, valid={"return": value})
        for i, value in ((1, 0.5), (2, last))
    )
    known = {"params": 1234, "seconds": 5.0, "steps": 2, "planned_steps": 2, "tokens": 20}
    return Outcome(name=name, seed=seed, status=DONE, curve=curve, **known)


def test_the_summary_is_beside_the_paper():
    outcomes = {"gtrxl": [trial("gtrxl", 0, 1.0), trial("gtrxl", 1, 0.5)], "lstm": [trial("lstm", 0, 0.25)], "no": []}
    rows = summary(outcomes, 0.95)
    assert [(r["name"], r["solved"], r["seeds"], r["return"], r["worst"]) for r in rows] == [
        ("gtrxl", 1, 2, 0.75, 0.5),
        ("lstm", 0, 1, 0.25, 0.25),
    ]
    assert [r["dmlab"] for r in rows] == [117.6, 99.3]
    text = table({"gtrxl": [trial("gtrxl", 0, 1.0)], "other": [trial("other", 0, 0.5)]}, 0.95)
    assert "| gtrxl | 1,234 | 1 of 1 | 20 | 1.000 (1.000) | 5 | 117.6 |" in text
    assert "| other | 1,234 | 0 of 1 |  | 0.500 (0.500) | 5 |  |" in text


def test_a_budget_is_steps_in_the_environment():
    recipe, _ = toy()
    # 5 rows of 6 steps, three updates each
    assert fitted(recipe, 100).training.steps == 9
    with pytest.raises(SpecError, match="a rollout takes 30 steps, more than the budget of 29"):
        fitted(recipe, 29)


def pretended(returns):
    """A runner that leaves outcomes instead of training."""
    seen = []

    def run_all(jobs, slots, screen, held, *_):
        for job in jobs:
            seen.append((job.name, job.seed))
            order = json.loads((job.folder / "trial.json").read_text())
            assert order["data"] == {"env": "cue-recall:corridor=2,cues=3"}
            trial(job.name, job.seed, returns[job.name] + 0.01 * job.seed).replace(key=job.key).write(job.folder)

    return seen, run_all


def test_a_study_has_the_statistics_and_the_report_of_every_comparison(tmp_path, monkeypatch):
    recipe, world = toy("lstm", **{"training.steps": 3})
    seen, run_all = pretended({"good": 0.95, "bad": 0.25})
    monkeypatch.setattr(trials, "run_all", run_all)
    recipes = {name: recipe.replace(name=name) for name in ("bad", "good")}

    def study(seeds):
        settings = Settings(
            contestants=("bad", "good"), budget="90-tokens", seeds=seeds, tune="off", match="none", out=tmp_path
        )
        return run(ActingStudy(world=world, recipes=recipes, settings=settings, threshold=0.95))

    result = study(2)
    assert seen == [("bad", 0), ("good", 0), ("bad", 1), ("good", 1)]
    first, second = result.rows
    # more is better
    assert (first.name, first.measure, first.rank) == ("good", "return", 1)
    assert (second.name, second.mark) == ("bad", "*")
    study(3)
    assert seen[4:] == [("bad", 2), ("good", 2)]
    page = (tmp_path / "report.html").read_text()
    assert "Use <strong>good</strong>" in page
    assert "highest return" in page
    root = ElementTree.parse(tmp_path / "curves.svg").getroot()
    assert "solved" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "| good |" in (tmp_path / "table.md").read_text()


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
    assert [row["name"] for row in found["solved"]] == ["lstm", "gtrxl"]
    assert {row["measure"] for row in found["rows"]} == {"return"}
    assert [t["curve"][-1]["tokens"] for t in found["trials"]] == [32, 32]
    assert (tmp_path / "s" / "report.html").exists()
    assert main([*words, *sets, "--budget", "1m"]) != 0
    assert "steps in the environment: 100k-tokens" in capsys.readouterr().err
