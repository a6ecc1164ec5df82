"""Children are run side by side, watched, stopped and explained; none ends the others."""

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from kinfolk.contests import devices, schedule
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, DONE, OUT_OF_MEMORY, TIMED_OUT, Outcome
from kinfolk.contests.schedule import lock, run_all
from kinfolk.contests.screen import Screen
from kinfolk.core.child import explain, last_lines
from kinfolk.core.errors import KinfolkError

FINISH = """
import json, pathlib, sys
fields = dict(name="x", seed=0, status="done", steps=3, curve=[], peak_bytes=1)
pathlib.Path(sys.argv[1], "result.json").write_text(json.dumps(fields))
"""
HANG = "import time; time.sleep(60)"
LISTEN = f"""
import pathlib, sys, time
sys.path.insert(0, {str(Path(schedule.__file__).parents[2])!r})
from kinfolk.core.child import interrupt_with_parent
interrupt_with_parent()
here = pathlib.Path(sys.argv[1])
(here / "ready").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    (here / "saved").touch()
    sys.exit(130)
"""


def job(folder: Path, code: str, name: str = "x", **fields: object) -> Job:
    here = folder / name
    return Job(
        name=name,
        seed=0,
        key="k",
        folder=here,
        command=[sys.executable, "-c", code, str(here)],
        threads=1,
        **fields,  # type: ignore[arg-type]
    )


@pytest.fixture
def screen() -> Iterator[Screen]:
    with Screen(3, console=Console(quiet=True)) as screen:
        yield screen


def test_every_accelerator_has_one_trial_at_a_time(tmp_path: Path, screen: Screen) -> None:
    """Both children wait until the other has noted its device; the third takes the first that is free again."""
    note = "import os, pathlib, sys, time; here = pathlib.Path(sys.argv[1]).parent; "
    note += "(here / pathlib.Path(sys.argv[1]).name / 'device').write_text(os.environ['CUDA_VISIBLE_DEVICES']); "
    meet = note + "end = time.time() + 60\nwhile len(list(here.glob('*/device'))) < 2 and time.time() < end: "
    meet += "time.sleep(0.02)"
    jobs = [job(tmp_path, code, name) for name, code in zip("abc", (meet, meet, note), strict=True)]
    run_all(jobs, 2, screen, (), [{"CUDA_VISIBLE_DEVICES": name} for name in ("4", "6")])
    seen = {name: (tmp_path / name / "device").read_text() for name in "abc"}
    assert {seen["a"], seen["b"]} == {"4", "6"}
    assert seen["c"] in ("4", "6")


def test_devices_are_named_as_this_process_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert devices.environments() == [] or torch.accelerator.is_available()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    for kind, variable in devices.VARIABLES.items():
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, kind=kind: torch.device(kind))
        monkeypatch.delenv(variable, raising=False)
        assert devices.environments() == [{variable: "0"}, {variable: "1"}]
        monkeypatch.setenv(variable, "5, 7")
        assert devices.environments() == [{variable: "5"}, {variable: "7"}]
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("mps"))
    assert devices.environments() == [{}]


def test_memory_is_that_of_the_device_where_there_is_one() -> None:
    host = Outcome(name="x", seed=0, status=DONE, start_bytes=10, peak_bytes=70)
    assert (host.most_bytes, host.growth_bytes) == (70, 60)
    device = host.replace(device_bytes=500)
    assert (device.most_bytes, device.growth_bytes) == (500, 500)


def test_a_crash_and_a_kill_are_outcomes_beside_the_finished(tmp_path: Path, screen: Screen) -> None:
    jobs = [
        job(tmp_path, "raise ValueError('bad \\x1b[31mspan\\x1b[0m')", "crash"),
        job(tmp_path, "import os; os.kill(os.getpid(), 9)", "kill"),
        job(tmp_path, FINISH, "fine"),
    ]
    outcomes = {outcome.name: outcome for outcome in run_all(jobs, 2, screen)}
    assert outcomes["crash"].status == CRASHED
    assert "exit code 1" in outcomes["crash"].reason
    assert outcomes["crash"].reason.endswith("ValueError: bad span")
    assert outcomes["kill"].status == OUT_OF_MEMORY
    assert outcomes["x"].status == DONE
    assert Outcome.read(tmp_path / "crash") == outcomes["crash"]


def test_an_account_of_an_earlier_attempt_is_not_taken_for_this_one(tmp_path: Path, screen: Screen) -> None:
    crash = job(tmp_path, "raise SystemExit(7)")
    crash.folder.mkdir()
    Outcome(name="x", seed=0, status=DONE).write(crash.folder)
    (outcome,) = run_all([crash], 1, screen)
    assert (outcome.status, outcome.reason) == (CRASHED, "exit code 7")


def test_side_by_side_and_neighbours(tmp_path: Path, screen: Screen) -> None:
    # each waits until the other has begun, so this ends only if both run at once
    meet = """
import pathlib, sys, time
here = pathlib.Path(sys.argv[1])
(here / "here").touch()
while len(list(here.parent.glob("*/here"))) < 2: time.sleep(0.01)
time.sleep(0.5)
""" + FINISH.replace('"x"', "sys.argv[1][-1]")
    outcomes = run_all([job(tmp_path, meet, name, limit=60.0) for name in "ab"], 2, screen)
    assert sorted(outcome.name for outcome in outcomes) == ["a", "b"]
    assert all(outcome.status == DONE and outcome.neighbours > 0.4 for outcome in outcomes)
    # measured from outside: more than the one byte that the child itself said
    assert all(outcome.peak_bytes > 1e6 for outcome in outcomes)


def test_threads_and_order(tmp_path: Path, screen: Screen) -> None:
    note = "import os; open({file!r}, 'a').write({name!r} + os.environ['OMP_NUM_THREADS'] + ' ')"
    file = str(tmp_path / "order")
    run_all([job(tmp_path, note.format(file=file, name=name), name) for name in "cab"], 1, screen)
    assert Path(file).read_text() == "c1 a1 b1 "


def test_a_trial_that_takes_too_long_is_stopped(
    tmp_path: Path, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "SAVING", 0.2)
    # deaf to the polite request as well
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    (outcome,) = run_all([job(tmp_path, deaf, limit=1.0)], 1, screen)
    assert outcome.status == TIMED_OUT
    assert "not finished after 1 s" in outcome.reason


def test_an_interruption_lets_every_child_save(tmp_path: Path, screen: Screen) -> None:
    jobs = [job(tmp_path, LISTEN, "a"), job(tmp_path, LISTEN, "b"), job(tmp_path, FINISH, "never")]

    def interrupt() -> None:
        while len(list(tmp_path.glob("*/ready"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, 2, screen)
    assert sorted(file.parent.name for file in tmp_path.glob("*/saved")) == ["a", "b"]
    # what was interrupted is not an outcome: it goes on next time
    assert not list(tmp_path.glob("*/result.json"))


def test_a_child_does_not_hear_the_keyboard(tmp_path: Path, screen: Screen) -> None:
    # Ctrl-C goes to all processes of a terminal's session; a child that also heard it would be interrupted twice
    run_all([job(tmp_path, f"import os; open({str(tmp_path / 'sid')!r}, 'w').write(str(os.getsid(0)))")], 1, screen)
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)


def test_a_child_stops_when_its_parent_is_gone(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    child = schedule.Child(job(tmp_path, LISTEN).command, tmp_path / "x")
    while not (tmp_path / "x" / "ready").exists():
        time.sleep(0.02)
    # the pipe closes by itself when the process at its other end dies
    child.close()
    assert child.process.wait(10) == 130
    assert (tmp_path / "x" / "saved").exists()


def test_a_folder_belongs_to_one_comparison_at_a_time(tmp_path: Path) -> None:
    with lock(tmp_path) as held:
        assert len(held) == 1
        with pytest.raises(KinfolkError, match="another comparison"), lock(tmp_path):
            pass
    with lock(tmp_path) as held:
        child = schedule.Child([sys.executable, "-c", HANG], tmp_path, held=held)
    # the parent has let go, but its child still lives
    with pytest.raises(KinfolkError, match="another comparison"), lock(tmp_path):
        pass
    child.end(0)
    with lock(tmp_path) as held:
        assert held


def test_last_lines_of_a_long_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * 200_000 + "\n\nlast but one\n  last  \n\n")
    assert last_lines(tmp_path / "log", 2) == "last but one\n  last"
    assert last_lines(tmp_path / "nothing", 2) == ""


def test_exit_codes_in_words() -> None:
    assert explain(3) == "exit code 3"
    assert explain(-11) == "killed by SIGSEGV"
    assert explain(-300) == "killed by signal 300"


def test_the_time_left_counts_only_the_work_of_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("kinfolk.contests.screen.time.monotonic", lambda: now[0])
    text = io.StringIO()
    with Screen(2, weight=2.0, console=Console(file=text, width=200, force_terminal=True)) as screen:
        fresh, half = job(tmp_path, FINISH, "a"), job(tmp_path, FINISH, "b", steps=10)
        (half.folder / "run").mkdir(parents=True)
        (half.folder / "run" / "metrics.jsonl").write_text('{"step": 5}\n')
        screen.started(fresh)
        screen.started(half)
        now[0] += 30
        # a quarter of each remains undone: one did three quarters in half a minute, the other one quarter
        screen.update([(fresh, 0.75), (half, 0.75)])
    # one of one and a half is done in 30 s, so the other half takes 15
    assert "15s left" in text.getvalue()


def test_totals_of_local_trials_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts, speed and hours, as events for machines."""
    monkeypatch.setattr("kinfolk.contests.screen.REPORT_EVERY", 0.0)
    heard: list[dict[str, object]] = []

    def hear(line: str) -> None:
        event = json.loads(line)
        if event["event"] == "progress" and event["tokens_per_second"]:
            heard.append(event)
            (tmp_path / "heard").touch()

    code = f"""
import pathlib, sys, time
(pathlib.Path(sys.argv[1]) / "run").mkdir()
(pathlib.Path(sys.argv[1]) / "run" / "metrics.jsonl").write_text('{{"step": 1, "tokens_per_second": 50.0}}\\n')
while not pathlib.Path({str(tmp_path)!r}, "heard").exists():
    time.sleep(0.01)
"""
    with Screen(2, console=Console(quiet=True), events=hear) as screen:
        run_all([job(tmp_path, code + FINISH, "a"), job(tmp_path, FINISH, "b")], 1, screen)
    expected = {"queued": 1, "running": 1, "finished": 0, "failed": 0, "tokens_per_second": 50.0}
    assert expected.items() <= heard[0].items()
    assert {"seconds_left", "core_hours", "gpu_hours"} <= heard[0].keys()


def test_machines_are_told_that_trials_wait_for_workers() -> None:
    lines: list[str] = []
    with Screen(2, console=Console(quiet=True), events=lines.append) as screen:
        screen.counted(queued=2, running=0)
        screen.update([])
    assert {"event": "progress", "queued": 2, "running": 0}.items() <= json.loads(lines[0]).items()


def test_lines_instead_of_bars_where_nobody_watches(tmp_path: Path) -> None:
    text = io.StringIO()
    with Screen(1, console=Console(file=text, width=200)) as screen:
        run_all([job(tmp_path, "raise KeyError('k')", "odd[1]")], 1, screen)
    assert "[0/1] odd[1] · seed 0 begins" in text.getvalue()
    assert "[1/1] odd[1] · seed 0: crashed: KeyError: 'k'" in text.getvalue()
