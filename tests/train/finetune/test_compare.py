"""Fine-tuning as a comparison: sources and tactics at an equal budget."""

import json

import pytest

from kinfolk.cli.main import main
from kinfolk.contests.plan import make
from kinfolk.contests.settings import Settings
from kinfolk.core.errors import SpecError
from tests.train.finetune.conftest import make_run


def settings(files, sources, tactics, out, **more):
    known = {
        "data": str(files[0]),
        "valid": str(files[1]),
        "budget": "2k-tokens",
        "seeds": 1,
        "out": out,
        "jobs": 1,
        "tune": "off",
    }
    return Settings(finetune=tuple(map(str, sources)), tactics=tuple(tactics), **(known | more))


def test_every_tactic_is_tried_on_every_source(run, words, files, tmp_path):
    deeper = make_run(tmp_path / "deeper", "bert", words, n_layers=3)
    plan = make(settings(files, (run, deeper), ("plain", "lora=2"), tmp_path / "out"))
    assert [e.name for e in plan.entrants] == ["bert plain", "bert lora=2", "deeper plain", "deeper lora=2"]
    trials = [plan.trial(entrant, 0) for entrant in plan.entrants]
    assert len({trial.key for trial in trials}) == 4
    assert {trial.recipe["training"]["steps"] for trial in trials} == {plan.steps(plan.entrants[0])}
    assert trials[1].begins["tactic"] == "lora=2"
    assert "bert" in plan.card(plan.entrants[0], trials[0]).changes
    # the same source elsewhere is the same trial; another one is not
    run.rename(tmp_path / "moved")
    again = make(settings(files, (tmp_path / "moved",), ("plain",), tmp_path / "out"))
    assert again.trial(again.entrants[0], 0).begins["digest"] == trials[0].begins["digest"]


def test_what_does_not_go_together_is_refused(files, run, tmp_path):
    with pytest.raises(SpecError, match="did you mean 'plain'"):
        settings(files, (run,), ("plian",), tmp_path)
    with pytest.raises(SpecError, match="contestants of its own"):
        settings(files, (run,), ("plain",), tmp_path, contestants=("gpt2",))
    with pytest.raises(SpecError, match="--finetune"):
        settings(files, (), ("plain",), tmp_path)


@pytest.mark.slow
@pytest.mark.long
def test_tactics_are_ranked_by_the_metric(run, files, tmp_path, capsys):
    given = [
        "--data",
        str(files[0]),
        "--valid",
        str(files[1]),
        "--budget",
        "4k-tokens",
        "--seeds",
        "1",
        "--tune",
        "off",
        "--json",
    ]
    code = main(
        ["compare", "--finetune", str(run), "--tactics", "plain,frozen", *given, "--out", str(tmp_path / "out")]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert {row["name"] for row in found["rows"]} == {"plain", "frozen"}
    assert {row["measure"] for row in found["rows"]} == {"accuracy"}
    assert {row["tokens"] for row in found["rows"]} == {found["rows"][0]["tokens"]}
    assert (tmp_path / "out" / "report.html").is_file()
