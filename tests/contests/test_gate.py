"""The gate: three answers, three exit codes, and no improvement where there is none."""

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from kinfolk.cli.main import main
from kinfolk.contests import gate, trials
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import DIVERGED, DONE, Outcome, Point
from tests.contests.test_run import Machine


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(trials, "run_all", made)
    return made


def ended(job: Job, gap: float = 0.0, noise: float = 0.01, measure: str = "next-token") -> Outcome:
    order = json.loads((job.folder / "trial.json").read_text())
    draw = random.Random(f"{job.name} {job.seed}").gauss(0, noise)
    score = 2 + math.cos(job.seed) + draw + (gap if job.name == "candidate" else 0.0)
    point = Point(step=5, tokens=50, seconds=1.0, flops=1.0, valid={measure: score})
    test = {measure: score} if order["held_out"] == "judged" else {}
    return Outcome(name=job.name, seed=job.seed, key=job.key, status=DONE, steps=5, curve=(point,), test=test)


def asked(tmp_path: Path, *more: str) -> list[str]:
    data = ["--data", "stdlib:megabytes=1", "--budget", "10k-tokens", "--jobs", "2", "--out", str(tmp_path / "out")]
    return ["gate", "gpt2", "gpt2+rotary", *data, *more]


@pytest.mark.parametrize(("gap", "answer"), [(-0.1, "better"), (0.1, "worse"), (0.0, "not decided")])
def test_three_answers(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str], gap: float, answer: str
) -> None:
    machine.how = lambda job: ended(job, gap)
    assert main(asked(tmp_path, "--json")) == gate.CODES[answer]
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["answer"], found["measure"], found["level"]) == (answer, "next-token", 0.05)
    assert found["low"] < found["difference"] < found["high"]
    assert (found["baseline"]["name"], found["candidate"]["name"]) == ("gpt2", "gpt2+rotary")
    # more seeds were asked for only where it was open
    assert found["seeds"] == (9 if answer == "not decided" else 5)
    assert (tmp_path / "out" / "report.html").exists()


def test_of_a_score_that_should_be_high(machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine.how = lambda job: ended(job, 0.1, measure="accuracy")
    assert main(asked(tmp_path, "--json", "--tune", "off", "--match", "none")) == 0
    found = json.loads(capsys.readouterr().out)
    # the difference is the candidate's minus the baseline's
    assert 0 < found["low"] < found["difference"] < found["high"]


def test_a_candidate_that_is_the_baseline(machine: Machine, tmp_path: Path) -> None:
    """The same trials under two names: equal to the last bit, and so not decided."""
    machine.how = lambda job: ended(job, noise=0.0)
    assert main(["gate", "gpt2", "gpt2", *asked(tmp_path)[3:]]) == 3


def test_a_candidate_that_diverges_is_worse(machine: Machine, tmp_path: Path) -> None:
    machine.how = lambda job: (
        Outcome(name=job.name, seed=job.seed, key=job.key, status=DIVERGED, reason="loss is nan")
        if job.name == "candidate"
        else ended(job)
    )
    assert main(asked(tmp_path)) == 1


def test_a_difference_of_rates_is_no_answer(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The candidate's search is misled to a rate at which it is worse; at the baseline's rate it is as good."""

    def misled(job: Job) -> Outcome:
        order = json.loads((job.folder / "trial.json").read_text())
        high = order["recipe"]["training"]["optimiser"]["lr"] > 1e-3
        searching = order["held_out"] == "apart"
        shift = (-0.5 if high and job.name == "candidate" else 0.5 * high) if searching else 0.5 * high
        outcome = ended(job)
        scores = {name: score + shift for name, score in outcome.curve[-1].valid.items()}
        point = dataclasses.replace(outcome.curve[-1], valid=scores)
        return outcome.replace(curve=(point,), test=outcome.test and scores)

    machine.how = misled
    assert main(asked(tmp_path, "--json")) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"]["lr"] < found["candidate"]["lr"]
    assert found["low"] < 0 < 0.3 < found["difference"] < found["high"]
    assert "told apart by the choice of a rate only: at a rate of" in found["reason"]


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    assert main(["gate", "gpt2", "gtp2", *asked(tmp_path)[3:]]) == 2
    assert main(["gate", "first", "gpt2", *asked(tmp_path)[3:]]) == 2


def test_equals_pass_in_at_most_five_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 gates of equals with seeds added up to 9: better or worse at any look."""
    from kinfolk.contests.inference import OPEN, judge

    rng = random.Random(3)
    decided = 0
    for _ in range(300):
        block = [rng.gauss(0, 2) for _ in range(9)]
        scores = {name: [b + rng.gauss(0, 1) for b in block] for name in ("baseline", "candidate")}
        for n in (5, 7, 9):
            shown = {name: row[:n] for name, row in scores.items()}
            verdict = {s.name: s for s in judge(shown, against="baseline", looks=(5, 7, 9))}["candidate"].verdict
            if verdict != OPEN:
                decided += 1
                break
    # three standard errors above 5 %
    assert decided / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
