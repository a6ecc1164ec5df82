"""A suite: every task a comparison, every length measured, one report; with processes that are only pretended."""

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from kinfolk.cli.main import main
from kinfolk.contests import arena, suite_table, trials
from kinfolk.contests.interquartile import bootstrap, interquartile_mean
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, DONE, Outcome, Point
from kinfolk.contests.settings import Settings
from kinfolk.contests.suite import majority, run_suite
from kinfolk.contests.suite_result import SuiteResult
from kinfolk.core.errors import SpecError
from kinfolk.data import open_data

TINY = arena.Arena(
    "tiny", {"listops": "listops:length=20,shortest=2,depth=3", "image": "shapes:size=8,kinds=2"}, (64, 128), 2, 40
)
ACCURACY = {("bert", 0): 0.5, ("bert", 1): 0.6, ("linear", 0): 0.3, ("linear", 1): 0.3}


class Machine:
    """Takes jobs instead of running them."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.fails: set[tuple[str, str]] = set()
        self.worse = 0.0

    def __call__(self, jobs: Sequence[Job], slots: int, screen: object, held: Sequence[int], *_: object) -> None:
        for job in jobs:
            self.jobs.append(job)
            self._outcome(job).write(job.folder)

    def _outcome(self, job: Job) -> Outcome:
        known = Outcome(name=job.name, seed=job.seed, key=job.key, status=DONE, steps=10, seconds=2.0, start_bytes=100)
        if "calibrations" in job.folder.parts:
            length = int(job.folder.parts[-3].partition("-")[2])
            seconds = length / 64 * (1 if job.name == "bert" else 0.25)
            return known.replace(seconds=seconds, peak_bytes=100 + 1000 * length)
        if (job.name, job.folder.parts[-3]) in self.fails:
            return known.replace(status=CRASHED, reason="it fell over")
        right = ACCURACY[job.name, job.seed]
        point = Point(step=10, tokens=50, seconds=1.0, flops=1.0, valid={"class": 1.0, "accuracy": right})
        # the curve is on what chooses, and the score on what judges
        return known.replace(curve=(point,), test={"class": 1.0, "accuracy": right - self.worse})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(trials, "run_all", made)
    monkeypatch.setitem(arena.ARENAS, "tiny", TINY)
    return made


def ran(folder: Path, **asked: Any) -> SuiteResult:
    known: dict[str, Any] = {"contestants": ("bert", "linear"), "budget": "10k-tokens", "seeds": 2, "jobs": 2}
    known |= {"tune": "off", "match": "none"}
    settings = Settings(**(known | asked), out=folder)
    return run_suite("tiny", settings, "kin compare --suite tiny", Console(file=io.StringIO()))


def test_scores_speeds_and_memory(machine: Machine, tmp_path: Path) -> None:
    result = ran(tmp_path)
    best, other = result.standings
    assert (best.name, other.name) == ("bert", "linear")
    assert best.scores == pytest.approx({"listops": 55.0, "image": 55.0})
    assert best.spreads["image"] == pytest.approx(7.07, abs=0.01)
    assert other.average == pytest.approx(30.0)
    assert best.speed == pytest.approx({64: 10.0, 128: 5.0})
    assert other.relative_speed == pytest.approx(4.0)
    assert other.memory == {64: 64_000, 128: 128_000}
    assert (best.published, other.published) == ("Transformer", "Linear Transformer")
    # two seeds of two contestants for two tasks, and one measurement of each for two lengths
    assert len(machine.jobs) == 2 * 2 * 2 + 2 * 2
    measured = [job for job in machine.jobs if "calibrations" in job.folder.parts]
    assert len({job.threads for job in measured}) == 1


def test_the_score_is_the_one_that_is_judged(machine: Machine, tmp_path: Path) -> None:
    machine.worse = 0.2
    assert ran(tmp_path).standings[0].scores == pytest.approx({"listops": 35.0, "image": 35.0})


def test_one_number_over_tasks_is_the_interquartile_mean(machine: Machine, tmp_path: Path) -> None:
    middle = ran(tmp_path).standings[0].middle
    # of 50, 60, 50, 60 the lowest and the highest are left out
    assert middle == (pytest.approx(55), pytest.approx(50), pytest.approx(60))
    draw = np.random.default_rng(1)
    for n in (3, 4, 9, 40):
        scores = draw.standard_normal((5, n))
        assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=-1))


def test_the_bootstrap_draws_seeds_within_tasks() -> None:
    # tasks far apart have no part in the error; seeds do, and the interval is that of a mean of the middle half
    assert bootstrap([[10.0] * 5, [50.0] * 5, [90.0] * 5]) == (50.0, 50.0, 50.0)
    seeds = np.random.default_rng(2).standard_normal((4, 200))
    value, low, high = bootstrap([list(10.0 * task + row) for task, row in enumerate(seeds)])
    oracle = stats.bootstrap(
        seeds[1:3], lambda x, y, axis: (x.mean(axis) + y.mean(axis)) / 2, method="percentile", rng=3, n_resamples=2000
    )
    assert value == pytest.approx(15 + seeds[1:3].mean(), abs=0.05)
    assert high - low == pytest.approx(oracle.confidence_interval.high - oracle.confidence_interval.low, rel=0.1)


def test_what_is_written(machine: Machine, tmp_path: Path) -> None:
    result = ran(tmp_path)
    plain = json.loads((tmp_path / "results.json").read_text())
    assert [s["name"] for s in plain["standings"]] == ["bert", "linear"]
    assert plain["published"]["rows"]["BigBird"]["retrieval"] == 59.29
    rows = list(csv.reader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert rows[0][:4] == ["contestant", "listops", "image", "average"]
    assert [row[0] for row in rows[1:]] == ["bert", "linear"]
    assert float(rows[2][rows[0].index("steps/s 128")]) == pytest.approx(20.0)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<circle") == 2
    assert "Not comparable" in page
    assert "listops/report.html" in page
    assert (tmp_path / "listops" / "report.html").exists()
    text = io.StringIO()
    suite_table.show(result, Console(file=text, width=160))
    for said in ("55.0 ± 7.1", "55.0 [50.0, 60.0]", "most frequent class", "Sinkhorn", "4.00x", "Not comparable"):
        assert said in text.getvalue()


def test_the_same_command_goes_on(machine: Machine, tmp_path: Path) -> None:
    ran(tmp_path)
    done = len(machine.jobs)
    ran(tmp_path)
    assert len(machine.jobs) == done


def test_a_contestant_that_fails_a_task_has_no_average(machine: Machine, tmp_path: Path) -> None:
    machine.fails.add(("linear", "image"))
    linear = ran(tmp_path).standings[-1]
    assert linear.name == "linear"
    assert linear.scores == pytest.approx({"listops": 30.0})
    assert linear.average is None
    assert "it fell over" in linear.notes[0]
    assert "<circle" in (tmp_path / "report.html").read_text()


def test_published_averages_are_those_that_were_published() -> None:
    averages = {
        "Transformer": 54.39,
        "Local Attention": 46.06,
        "Linear Transformer": 50.55,
        "Reformer": 50.67,
        "Sparse Transformer": 51.24,
        "Sinkhorn Transformer": 51.29,
        "Linformer": 51.36,
        "Performer": 51.41,
        "Synthesizer": 52.88,
        "Longformer": 53.46,
        "BigBird": 55.01,
    }
    found = {name: arena.average(row) for name, row in arena.PUBLISHED.items()}
    # of this row alone the published mean is not that of its scores
    assert found.pop("Sinkhorn Transformer") == pytest.approx(averages.pop("Sinkhorn Transformer"), abs=0.2)
    assert found == pytest.approx(averages, abs=0.01)


@pytest.mark.parametrize("name", ["lra", "lra-small"])
def test_suites_have_the_five_tasks_and_rows_of_the_table(name: str) -> None:
    found = arena.arena(name)
    assert tuple(found.tasks) == arena.COLUMNS
    for data in found.tasks.values():
        assert open_data(data).kind == "labelled"
    assert {arena.row_of(relative) for relative in arena.FIRST} == set(arena.PUBLISHED) - {"Sinkhorn Transformer"}


@pytest.mark.parametrize("name", ["mad", "mad-small", "mqar", "mqar-small"])
def test_suites_of_recall(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = arena.arena(name)
    for data in found.tasks.values():
        assert open_data(data).split("train").asks == "tags"
    # the published settings are as large as they were; what is written of them is the same
    small = {"recall": "in-context-recall:length=16", "compression": "compression:length=8"}
    monkeypatch.setitem(arena.ARENAS, "tiny", dataclasses.replace(found, tasks=small, valid=40))
    result = ran(tmp_path)
    assert result.standings[0].scores == pytest.approx({"recall": 55.0, "compression": 55.0})
    assert not any("calibrations" in job.folder.parts for job in machine.jobs)
    text = io.StringIO()
    suite_table.show(result, Console(file=text, width=160))
    assert found.origin.paper in text.getvalue().replace("\n", " ")
    assert "Transformer" not in text.getvalue().split(found.origin.paper[:10])[0]
    assert "Cost of a training step" not in (tmp_path / "report.html").read_text()


def test_guessing(tmp_path: Path) -> None:
    assert majority(open_data("shapes:size=8,kinds=2"), 200) == pytest.approx(0.5, abs=0.1)
    assert majority(open_data("logic:operators=4"), 200) > 0.5
    # half of sixteen symbols are values, and only those are asked for
    assert majority(open_data("in-context-recall"), 200) == pytest.approx(1 / 8, abs=0.03)


@pytest.mark.parametrize(
    ("asked", "message"), [({"data": "copy"}, "has data of its own"), ({"contestants": ("nobody",)}, "'nobody'")]
)
def test_what_cannot_be_run_is_refused(machine: Machine, tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ran(tmp_path, **asked)
    assert not machine.jobs


def test_an_unknown_suite_is_refused() -> None:
    with pytest.raises(SpecError, match="unknown choice 'lar'; did you mean 'lra'"):
        run_suite("lar", Settings())


def test_the_command(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "compare",
        "bert",
        "--relatives",
        "linear",
        "--budget",
        "10k-tokens",
        "--seeds",
        "1",
        "--tune",
        "off",
        "--out",
        str(tmp_path),
    ]
    assert main([*asked, "--suite", "tiny", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert [s["name"] for s in plain["standings"]] == ["bert", "linear"]
    assert plain["standings"][0]["average"] == pytest.approx(50.0)
    assert main([*asked, "--suite", "lar"]) != 0
    assert "did you mean 'lra'" in capsys.readouterr().err
