"""Workers and the driver with trials that are one line of Python: ends, crashes, deaths, mismatches."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kinfolk.cli.main import main
from kinfolk.contests.fleet import worker as module
from kinfolk.contests.fleet.driver import Driver
from kinfolk.contests.fleet.engines import ExternalWorkers
from kinfolk.contests.fleet.queue import Queue, Ticket, Watch
from kinfolk.contests.fleet.worker import Worker, mismatches, requirements
from kinfolk.contests.job import Job
from kinfolk.contests.outcome import CRASHED, DONE, Outcome
from kinfolk.contests.screen import Screen
from kinfolk.core.console import Console
from kinfolk.core.errors import DataError

ENDS = (
    "import sys, json, pathlib; f = pathlib.Path(sys.argv[1]); r = {r}; (f / 'result.json').write_text(json.dumps(r))"
)


def job(home: Path, name: str, code: str = "") -> Job:
    result = {"name": name, "seed": 0, "status": DONE, "curve": []}
    folder = home / "trials" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trial.json").write_text("{}")
    (folder / "code.py").write_text(code or ENDS.format(r=result))
    command = [sys.executable, str(folder / "code.py"), str(folder)]
    return Job(name=name, seed=0, key="k", folder=folder, command=command, threads=1)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let workers run the line of Python that lies in a trial's folder."""

    def job_of(home: Path, ticket: Ticket, folder: Path) -> Job:
        command = [sys.executable, str(home / ticket.room / ticket.name / "code.py"), str(folder)]
        return Job(name=ticket.name, seed=0, key="k", folder=folder, command=command, threads=1)

    monkeypatch.setattr(module, "job_of", job_of)
    return tmp_path


def driver_of(home: Path, jobs: list[Job], patience: float) -> Driver:
    driver = Driver(home, Screen(len(jobs), console=Console(file=io.StringIO())), Watch(Queue(home), patience))
    driver.put(jobs)
    return driver


def drive(home: Path, jobs: list[Job], n_workers: int = 2, patience: float = 60.0) -> tuple[list[Outcome], list[str]]:
    lines: list[str] = []
    driver = driver_of(home, jobs, patience)
    workers = [
        threading.Thread(target=Worker(Queue(home), lines.append, heartbeat=0.1, patience=patience).work, args=(3.0,))
        for _ in range(n_workers)
    ]
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(driver.run(ExternalWorkers(), every=0.05)))
    thread.start()
    for each in workers:
        each.start()
    thread.join(60)
    assert not thread.is_alive()
    for each in workers:
        each.join(60)
    return outcomes, lines


def test_every_trial_runs_once_and_crashes_are_told(fake: Path) -> None:
    count = "import sys, pathlib\nwith (pathlib.Path(sys.argv[1]) / 'count').open('a') as f: f.write('x')\n"
    jobs = [
        job(fake, f"good{i}", count + ENDS.format(r={"name": "g", "seed": i, "status": DONE, "curve": []}))
        for i in range(4)
    ]
    jobs.append(job(fake, "bad", "raise SystemExit('no luck')"))
    outcomes, _ = drive(fake, jobs)
    assert sorted(outcome.status for outcome in outcomes) == [CRASHED, DONE, DONE, DONE, DONE]
    assert next(o for o in outcomes if o.status == CRASHED).reason.endswith("no luck")
    assert [(j.folder / "count").read_text() for j in jobs[:4]] == ["x"] * 4
    assert Queue(fake).count() == {"waiting": 0, "running": 0}


def test_a_trial_whose_worker_died_is_run_by_another(fake: Path) -> None:
    driver = driver_of(fake, [job(fake, "one")], patience=0.5)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(driver.run(ExternalWorkers(), every=0.05)))
    thread.start()
    while (claim := Queue(fake).claim("dead")) is None:
        time.sleep(0.01)
    deadline = time.monotonic() + 30
    while claim.file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # what is taken from the dead waits again a moment later
    assert Worker(Queue(fake), lambda _: None, heartbeat=0.1).work(wait=30.0, most=1) == 1
    thread.join(30)
    assert [outcome.status for outcome in outcomes] == [DONE]


def test_a_trial_that_kills_its_workers_becomes_a_row(fake: Path) -> None:
    driver = driver_of(fake, [job(fake, "deadly")], patience=0.2)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(driver.run(ExternalWorkers(), every=0.02)))
    thread.start()
    deadline = time.monotonic() + 30
    while thread.is_alive():
        assert time.monotonic() < deadline
        Queue(fake).claim("victim")
        time.sleep(0.02)
    assert [outcome.status for outcome in outcomes] == [CRASHED]
    assert "3 workers died" in outcomes[0].reason


def test_a_worker_whose_trial_starts_slowly_is_alive(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first trial of a worker waits until PyTorch has been imported, on a slow disk for minutes."""
    queue, start = Queue(fake), module.Running.start

    def slowly(job: Job) -> module.Running:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            assert not [file for file in watch.dead() if queue.revive(file)]
            time.sleep(0.05)
        return start(job)

    monkeypatch.setattr(module.Running, "start", slowly)
    queue.create()
    watch = Watch(queue, patience=1.0)
    job(fake, "one")
    queue.put([Ticket(name="one", room="trials")])
    assert Worker(queue, lambda _: None, heartbeat=0.05).work() == 1
    assert [ticket.deaths for ticket in queue.collect()] == [0]


def test_a_lost_claim_stops_the_trial_at_once(fake: Path) -> None:
    queue = Queue(fake)
    queue.create()
    job(fake, "slow", "import time; time.sleep(60)")
    queue.put([Ticket(name="slow", room="trials")])
    lines: list[str] = []
    thread = threading.Thread(target=Worker(queue, lines.append, heartbeat=0.05).work)
    thread.start()
    deadline = time.monotonic() + 30
    while not (claims := queue.claims()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    claims[0].unlink()
    thread.join(30)
    assert not thread.is_alive()
    assert any("another worker has taken over" in line for line in lines)


def test_a_worker_pulls_from_all_folders_of_a_suite(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also from those of tasks that are planned while it waits."""
    assert main(["work", str(fake)]) == 2
    assert "has no queue of trials" in capsys.readouterr().err

    def plan(task: str) -> None:
        queue = Queue(fake / task)
        queue.create()
        names = [f"{task}{i}" for i in range(2)]
        for name in names:
            job(fake / task, name)
        queue.put(Ticket(name=name, room="trials") for name in names)

    plan("listops")
    assert main(["work", str(fake), "--status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"waiting": 2, "running": 0}
    later = threading.Timer(2.0, plan, args=("text",))
    later.start()
    assert main(["work", str(fake), "--wait", "20s", "--most", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"trials": 3}
    assert main(["work", str(fake)]) == 0
    assert sorted(path.parent.name for path in fake.glob("*/trials/*/result.json")) == [
        *("listops0", "listops1"),
        *("text0", "text1"),
    ]


def test_what_a_worker_lacks_is_refused_by_name(fake: Path) -> None:
    queue = Queue(fake)
    queue.create()
    queue.put([Ticket(name="a", room="trials", requires={"kinfolk": "9.9.9", "plugin my.py": "abc"})])
    with pytest.raises(DataError, match=r"(?s)kinfolk 9\.9\.9 is required.*plugin my\.py abc.*--plugin"):
        Worker(queue, lambda _: None).work()
    assert queue.count() == {"waiting": 1, "running": 0}
    assert mismatches(requirements()) == []


def test_the_command_line_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["work", str(tmp_path)]) == 2
    assert "has no queue of trials" in capsys.readouterr().err
    Queue(tmp_path).create()
    assert main(["work", str(tmp_path), "--wait", "10k-tokens"]) == 2
    assert "expected a duration" in capsys.readouterr().err
    assert main(["work", str(tmp_path), "--status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"waiting": 0, "running": 0}
    assert main(["work", str(tmp_path)]) == 0


def test_a_ticket_cannot_name_another_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names the folder 'elsewhere'"):
        module.job_of(tmp_path, Ticket(name="a", room="elsewhere"), tmp_path)
    with pytest.raises(DataError, match="its trial cannot be read"):
        module.job_of(tmp_path, Ticket(name="a", room="trials"), tmp_path)


def test_a_terminated_worker_gives_its_ticket_back(tmp_path: Path) -> None:
    """As a batch system does before preemption."""
    queue = Queue(tmp_path)
    queue.create()
    job(tmp_path, "slow", "import time; time.sleep(60)")
    queue.put([Ticket(name="slow", room="trials")])
    code = (
        "import sys; from pathlib import Path\n"
        "from kinfolk.contests.fleet import worker; from kinfolk.contests.job import Job\n"
        "def job_of(home, t, f):\n"
        "    code = home / t.room / t.name / 'code.py'\n"
        "    return Job(name='s', seed=0, key='k', folder=f, command=[sys.executable, str(code)], threads=1)\n"
        "worker.job_of = job_of\n"
        f"worker.Worker(worker.Queue(Path({str(tmp_path)!r})), print, heartbeat=0.1).work()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not queue.claims():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGTERM)
    process.wait(60)
    assert queue.count() == {"waiting": 1, "running": 0}
