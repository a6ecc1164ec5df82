import json

import pytest

from kinfolk.bench import runner, startup, train
from kinfolk.bench.contest import BenchSample
from kinfolk.cli.main import main


@pytest.fixture
def instant(monkeypatch):
    """Children that answer at once."""
    asked = []

    def answer(task):
        asked.append(task)
        return BenchSample(0.5, 1.0, 0.0, 0, 10, 20, 0.0)

    monkeypatch.setattr(runner, "in_child", answer)
    return asked


def test_the_verb_prints_a_table_and_writes_files(instant, capsys, tmp_path):
    assert main(["bench", "startup", "--rounds", "2", "--threads", "1", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "kin --help" in printed.out
    assert "round 2/2" in printed.err
    n_contestants = len(startup.contests()[0].contestants)
    assert len(instant) == 2 * n_contestants
    assert len(json.loads((tmp_path / "startup.json").read_text())["contests"][0]["rows"]) == n_contestants
    assert (tmp_path / "startup.txt").read_text().strip() == printed.out.strip()


def test_json_for_machines_and_peers_none(instant, capsys):
    assert (
        main(["bench", "train", "generate", "--peers", "none", "--rounds", "1", "--json", "--allocator", "speed"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [c["subject"] for c in found["contests"]] == ["train", "train", "generate", "generate"]
    assert all(not row["peer"] for c in found["contests"] for row in c["rows"])
    assert {task.allocator for task in instant} == {"speed"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "trian"], "did you mean 'train'?"),
        (["bench"], "name a subject: attention, "),
        (["bench", "train", "--peers", "some"], "--peers: unknown choice 'some'"),
        (["bench", "train", "--allocator", "fast"], "--allocator: unknown choice 'fast'"),
        (["bench", "train", "--rounds", "0"], "--rounds must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_is_stopped_has_kept_the_contests_before(monkeypatch, tmp_path):
    answered = []

    def answer(task):
        if answered and task.sizes != answered[0].sizes:
            raise KeyboardInterrupt
        answered.append(task)
        return BenchSample(0.5, 1.0, 0.0, 0, 10, 20, 0.0)

    monkeypatch.setattr(runner, "in_child", answer)
    history = tmp_path / "bench.jsonl"
    assert main(["bench", "train", "--peers", "none", "--rounds", "1", "--history", str(history)]) == 130
    (line,) = history.read_text().splitlines()
    assert json.loads(line)["contest"] == f"train: {train.contests()[0].title}"


def test_a_history_is_kept_printed_and_compared_with(instant, capsys, tmp_path):
    history = str(tmp_path / "kept" / "bench.jsonl")
    words = ["bench", "startup", "--rounds", "1", "--threads", "1"]
    assert main([*words, "--history", history]) == 0
    assert main([*words, "--check", history]) == 0
    assert "speed 1.00 -> 1.00 since" in capsys.readouterr().err
    assert main(["bench", "--history", history]) == 0
    assert "beside" in capsys.readouterr().out
