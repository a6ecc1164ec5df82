import dataclasses
import itertools
import json

import pytest

from kinfolk.bench import child, growth, memory, runner, table
from kinfolk.bench.contest import BenchContestant, BenchSample, BenchTask, Contest, Work
from kinfolk.bench.runner import BenchSettings, ChildError, in_child, run

WHERE = {"processor": "x", "cores": 2, "python": "3", "versions": {"torch": "2"}, "load_before": 0.1}


def contest(*more):
    who = (BenchContestant("ours"), BenchContestant("peer", "peer"), *more)
    return Contest("train", "a contest", {"n_layers": 2}, who, "peer")


def sample(seconds, **changes):
    found = {"units": 100.0, "flops": 4.0, "parameters": 7, "growth_bytes": 50, "peak_bytes": 90, "gemm": 8.0}
    return BenchSample(seconds, **found | changes)


class Fake:
    """Answers like children do, one prepared time after another."""

    def __init__(self, times, **changes):
        self.times, self.asked, self.changes = {name: iter(t) for name, t in times.items()}, [], changes

    def __call__(self, task: BenchTask) -> BenchSample:
        self.asked.append(task.contestant.name)
        seconds = next(self.times[task.contestant.name])
        if seconds is None:
            raise ChildError("out of memory")
        return sample(seconds, **self.changes.get(task.contestant.name, {}))


def standing(times, settings=None, *more, **changes):
    start = Fake(times, **changes)
    return run(contest(*more), settings or BenchSettings(rounds=3), lambda line: None, start), start


def test_contestants_take_turns():
    _, start = standing({"ours": [1, 1, 1], "peer": [2, 2, 2]})
    assert start.asked == ["ours", "peer"] * 3


def test_ratios_are_between_neighbours_in_time():
    # the machine slows down ten times from round to round; ours is twice as fast in each
    result, _ = standing({"ours": [1, 10, 100], "peer": [2, 20, 200]})
    ours, peer = result.row("ours"), result.row("peer")
    assert (ours.speed, peer.speed) == (2.0, 1.0)
    assert (ours.seconds, ours.units_per_second, ours.rounds) == (10, 10.0, 3)
    assert ours.spread == pytest.approx(99 / 2 / 10)


def test_memory_and_share_of_the_peak():
    changes = {"ours": {"growth_bytes": 25, "gemm": 2.0}}
    result, _ = standing({"ours": [1, 1, 2], "peer": [1, 1, 1]}, **changes)
    assert result.row("ours").memory == 0.5
    assert (result.row("ours").growth_bytes, result.row("ours").total_bytes) == (25, 90)
    # against the best product of any process: 4 operations in a second of 8
    assert (result.gemm, result.row("ours").mfu) == (8.0, 0.5)


def test_the_share_of_the_read_bandwidth_is_a_column():
    changes = {"ours": {"read_bytes": 30.0, "bandwidth": 20.0}, "peer": {"bandwidth": 60.0}}
    result, _ = standing({"ours": [1, 1, 1], "peer": [1, 1, 1]}, **changes)
    # against the best of any process
    assert (result.bandwidth, result.row("ours").read_share, result.row("peer").read_share) == (60.0, 0.5, None)
    assert table.cells(result.row("ours"), result)["of read limit"] == "50 %"


def test_a_missing_peer_is_a_row_that_says_what_to_install():
    absent = BenchContestant("absent", "absent", package="no_such_package_anywhere")
    result, start = standing({"ours": [1, 1, 1], "peer": [2, 2, 2]}, None, absent)
    row = result.row("absent")
    assert row.seconds is None
    assert "pip install 'kinfolk[bench]'" in row.note
    assert "absent" not in start.asked
    assert "absent: not installed: pip install 'kinfolk[bench]'" in table.text([result], WHERE)


def test_a_contestant_that_fails_is_a_row_and_the_others_go_on():
    result, start = standing({"ours": [1, 1, 1], "peer": [2, None, 2]})
    assert result.row("peer").note == "failed: out of memory"
    assert result.row("peer").rounds == 1
    # the ratio is over the rounds that both have
    assert (result.row("ours").rounds, result.row("ours").speed) == (3, 2.0)
    assert start.asked.count("peer") == 2


def test_the_time_left_is_said_as_soon_as_it_is_known(monkeypatch):
    clock, said = itertools.count(0, 60), []
    monkeypatch.setattr(runner, "now", lambda: next(clock))
    run(contest(), BenchSettings(rounds=3), said.append, Fake({"ours": [1, 1, 1], "peer": [2, 2, 2]}))
    ahead = [line.partition(" ms")[2].strip() for line in said]
    assert ahead == ["", "", "3 min left", "2 min left", "1 min left", ""]


def test_without_peers_ours_stands_beside_itself():
    result, start = standing({"ours": [1, 2, 3]}, BenchSettings(rounds=3, peers="none"))
    assert set(start.asked) == {"ours"}
    assert [row.name for row in result.rows] == ["ours"]
    assert result.row("ours").speed == 1.0


def test_plain_data_survives_json_and_the_table_states_its_settings():
    result, _ = standing({"ours": [1, 1, 1], "peer": [2, 2, 2]}, BenchSettings(3, 2, "speed"))
    found = json.loads(json.dumps(table.plain([result], WHERE)))
    assert found["contests"][0]["rows"][0]["speed"] == 2.0
    assert found["contests"][0]["settings"] == {"rounds": 3, "threads": 2, "allocator": "speed", "peers": "all"}
    text = table.text([result], WHERE)
    assert "beside peer; 3 rounds, 2 threads, allocator: speed, GEMM peak 0 GFLOP/s" in text
    assert "ours         2.00" in text


def test_a_busy_machine_is_said():
    result, _ = standing({"ours": [1, 1, 1], "peer": [2, 2, 2]})
    assert "busy" not in table.text([result], WHERE)
    assert "the machine was busy (load 5 on 2 cores)" in table.text([result], WHERE | {"load_before": 5.0})


def test_a_real_child_measures_and_a_failing_one_says_why():
    sizes = {"length": 64, "window": 16, "heads": 2, "width": 8, "backward": True, "steps": 2}
    task = BenchTask("attention", BenchContestant("kinfolk"), sizes, 1, "memory")
    found = in_child(task)
    assert found.seconds > 0
    assert found.gemm > 1e8
    assert found.peak_bytes > found.growth_bytes >= 0
    with pytest.raises(ChildError, match="KeyError: 'length'"):
        in_child(dataclasses.replace(task, sizes={}))


def test_the_crossover_is_the_length_from_which_on_a_contestant_is_faster():
    assert growth.crossover({1000: 0.5, 2000: 1.2, 4000: 0.5, 8000: 2.0}) == "faster from about 5,700 on"
    assert growth.crossover({1000: 0.5, 2000: 0.9}) == "not faster up to 2,000"
    assert growth.crossover({1000: 1.5, 2000: 1.9}) == "faster from 1,000 or less on"


def test_the_exponent_is_that_of_the_longest_lengths():
    assert growth.exponent({1: 5.0, 4: 8.0, 16: 128.0}) == pytest.approx(2.0)
    assert growth.exponent({4: 8.0}) is None


def test_growth_is_said_of_contests_that_differ_in_length():
    by_length = []
    for length, ours in ((4, 1.0), (16, 4.0)):
        found, _ = standing({"ours": [ours] * 3, "peer": [0.5 * length**2] * 3})
        sizes = {"length": length, "backward": True}
        by_length.append(dataclasses.replace(found, contest=dataclasses.replace(found.contest, sizes=sizes)))
    said = growth.lines(by_length)
    assert len(said) == 3
    assert "time ~ L^1.00" in said[1]
    assert "from 4 or less on" in said[1]
    assert "time ~ L^2.00" in said[2]
    assert growth.lines(by_length[:1]) == []


def test_a_rival_is_compared_within_rounds():
    who = (BenchContestant("ours", rival="peer"), BenchContestant("peer", "other"), BenchContestant("base", "base"))
    contest = Contest("train", "a race", {}, who, "base")
    samples = {"ours": [1.0, 2.0, 4.0], "peer": [3.0, 4.0, 8.0], "base": [1.0, 1.0, 1.0]}
    found = {name: {n: sample(t) for n, t in enumerate(times)} for name, times in samples.items()}
    rows = runner.summarise(contest, BenchSettings(), found, dict.fromkeys(samples, "")).rows
    assert rows[0].rival_speed == 2.0
    assert rows[1].rival_speed is None
    assert "× peer" in table.cells(rows[0], runner.BenchStanding(contest, BenchSettings(), 0.0, rows))


def test_only_keeps_rivals_and_the_one_beside():
    who = (
        BenchContestant("a", rival="b"),
        BenchContestant("b", "x"),
        BenchContestant("c"),
        BenchContestant("base", "y"),
    )
    kept = Contest("train", "a race", {}, who, "base").only(["a"])
    assert [c.name for c in kept.contestants] == ["a", "b", "base"]


def test_long_steps_are_repeated_less(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(child.time, "perf_counter", lambda: 5.0 * next(clock))
    steps = []
    child.timed(Work(lambda: steps.append(1), warm_up=2, steps=50))
    assert 2 <= len(steps) <= 4


def test_the_cost_of_a_layer_is_a_slope():
    assert memory.per_layer({2: 100.0, 4: 140.0, 8: 220.0}) == 20.0
    assert memory.per_layer({2: 100.0}) is None


def test_memory_is_said_by_depth_with_the_share_of_parameters():
    def standing(depth):
        row = runner.BenchRow("ours", False, seconds=1.0, growth_bytes=depth * 30e6, parameters=depth * 10**6)
        contest = Contest("memory", "memory", {"n_layers": depth}, (BenchContestant("ours"),), "ours")
        return runner.BenchStanding(contest, BenchSettings(), 0.0, (row,))

    said = "\n".join(memory.lines([standing(2), standing(8)]))
    assert "2: 60 MB (24 MB)  8: 240 MB (96 MB)" in said
    assert "30 MB for each further layer, of which 12 MB parameters" in said
    assert memory.lines([standing(2)]) == []


def test_a_number_of_a_step_is_a_column():
    contest = Contest("halting", "halting", {}, (BenchContestant("ours"),), "ours", number="steps")
    row = runner.BenchRow("ours", False, seconds=1.0, value=2.5)
    assert table.cells(row, runner.BenchStanding(contest, BenchSettings(), 0.0, (row,)))["steps"] == "2.50"
