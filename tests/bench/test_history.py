"""Kept ratios of `kin bench`: what counts as worse, and beside what."""

import dataclasses
import json

import pytest

from kinfolk.bench import history, limits
from kinfolk.bench.contest import BenchContestant, Contest
from kinfolk.bench.runner import BenchRow, BenchSettings, BenchStanding
from kinfolk.core import machine
from kinfolk.core.errors import SpecError

WHERE = {"processor": "a kind", "versions": {"kinfolk": "1.0", "torch": "2"}}


def entry(speed=2.0, memory=0.5, spread=0.0, peer_speed=None, where=WHERE, threads=1):
    who = BenchContestant("ours"), BenchContestant("theirs", "peer")
    rows = (
        BenchRow("ours", False, seconds=1.0, speed=speed, memory=memory, spread=spread, rival_speed=peer_speed),
        BenchRow("theirs", True, seconds=1.0, speed=1.0, memory=1.0, spread=spread),
        BenchRow("missing", True, "not installed"),
    )
    contest = Contest("train", "a contest", {}, who, "theirs")
    return history.entries([BenchStanding(contest, BenchSettings(threads=threads), 0.0, rows)], where)


def kept(tmp_path, *entries):
    path = tmp_path / "bench.jsonl"
    for new in entries:
        history.append(path, new)
    return history.read(path)


@pytest.mark.parametrize(
    ("now", "good"),
    [
        ({}, True),
        ({"speed": 1.95}, True),
        ({"speed": 1.9}, False),
        ({"speed": 1.9, "spread": 0.1}, True),
        ({"memory": 0.55}, False),
        ({"memory": 0.55, "spread": 0.5}, False),
        ({"memory": 0.4}, True),
        ({"peer_speed": 1.5}, False),
    ],
)
def test_ratios_may_be_as_much_worse_as_rounds_vary(tmp_path, now, good):
    before = kept(tmp_path, entry(peer_speed=3.0))
    lines, found = history.check(before, entry(**{"peer_speed": 3.0} | now))
    assert found == good
    assert any("WORSE" in line for line in lines) != good
    assert not any("theirs:" in line for line in lines)


def test_the_last_result_of_such_a_machine_counts(tmp_path):
    before = kept(tmp_path, entry(speed=9.0), entry(speed=2.0), entry(speed=9.0, threads=2))
    assert history.check(before, entry()) == (
        [
            "train: a contest, ours: speed 2.00 -> 2.00 since 1.0",
            "train: a contest, ours: memory 0.50 -> 0.50 since 1.0",
        ],
        True,
    )
    lines, good = history.check(before, entry(where=WHERE | {"processor": "another"}))
    assert good
    assert lines == ["train: a contest: no kept result on another with these settings"]


def test_a_history_reads_version_by_version(tmp_path):
    newer = WHERE | {"versions": {"kinfolk": "1.1", "torch": "2"}}
    said = history.text(kept(tmp_path, entry(), entry(speed=2.5, where=newer)))
    assert "1.0 2.00, 1.1 2.50" in said
    assert "missing" not in said


@pytest.mark.parametrize("line", ["no json", "[]", json.dumps({"rows": {}})])
def test_a_broken_history_is_refused(tmp_path, line):
    path = tmp_path / "bench.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SpecError, match="line 1 is not an entry"):
        history.read(path)


def test_limits_of_the_machine(monkeypatch, tmp_path):
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("model name\t: A processor\nflags\t\t: fpu avx2 avx512f\n")
    monkeypatch.setattr(machine, "_CPU", cpu)
    monkeypatch.setattr(limits, "READ", 1 << 16)
    assert limits.instruction_sets() == ["avx2", "avx512f"]
    assert limits.processor().startswith("A processor ")
    assert limits.bandwidth() > 0
    monkeypatch.setattr(machine, "_CPU", tmp_path / "none")
    assert limits.instruction_sets() == []


def test_entries_hold_what_is_compared():
    (found,) = entry()
    names = {field.name for field in dataclasses.fields(BenchSettings)} - {"peers"}
    assert names <= found.keys()
    assert found["rows"].keys() == {"ours", "theirs"}
