"""A worker that lost its claim can change nothing: writes go to its own folder, and only the owner publishes."""

import json
import os
from pathlib import Path

import pytest

from kinfolk.contests.fleet import parcels
from kinfolk.contests.fleet.desk import Desk
from kinfolk.contests.fleet.queue import Queue, Ticket
from kinfolk.contests.fleet.worker import Journal
from kinfolk.contests.outcome import DONE, Outcome
from kinfolk.core.errors import KinfolkError
from kinfolk.core.lock import LOCK, locked
from kinfolk.runs.checkpoint import Checkpoints


def done(reason: str = "") -> Outcome:
    return Outcome(name="t", seed=0, status=DONE, reason=reason)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "trial.json").write_text("{}")
    return tmp_path


def test_the_next_owner_goes_on_with_what_was_left(home: Path) -> None:
    first = Desk(home, "a")
    assert first.open() is None
    (first.folder / "run").mkdir()
    (first.folder / "run" / "step").write_text("7")
    second = Desk(home, "b")
    assert second.open() is None
    assert not first.folder.exists()
    assert (second.folder / "run" / "step").read_text() == "7"
    done("of b").write(second.folder)
    assert second.publish()
    assert Outcome.read(home) == done("of b")
    assert (home / "run" / "step").read_text() == "7"
    assert [path.name for path in home.iterdir() if path.name.startswith("work@")] == []


def test_the_next_owner_does_not_wait_for_a_lock_of_the_last(home: Path) -> None:
    """A killed worker's trial may still be saving, and a suspended one holds its lock for as long as it sleeps."""
    first, second = Desk(home, "a"), Desk(home, "b")
    first.open()
    (first.folder / "run").mkdir()
    with locked(first.folder / "run"):
        second.open()
        with locked(second.folder / "run", KinfolkError("busy")) as descriptor:
            assert os.fstat(descriptor).st_ino == (second.folder / "run" / LOCK).stat().st_ino


def test_a_worker_that_wakes_up_late_can_publish_nothing(home: Path) -> None:
    """It is suspended while it saves a checkpoint, and finishes after another has finished."""
    late, owner = Desk(home, "late"), Desk(home, "owner")
    late.open()
    checkpoints = Checkpoints(late.folder / "run" / "checkpoints")
    checkpoints.save(1, {}, {"by": "late"})
    with (late.folder / "run" / "metrics.jsonl").open("a") as open_file:
        owner.open()
        own = Checkpoints(owner.folder / "run" / "checkpoints")
        assert own.newest().step == 1
        own.save(2, {}, {"by": "owner"})
        # the late one wakes up: what it writes by name lands in a folder that is nobody's
        open_file.write("late\n")
        checkpoints.save(2, {}, {"by": "late"})
        assert own.newest().state["by"] == "owner"
        done("of owner").write(owner.folder)
        (late.folder).mkdir(exist_ok=True)
        done("of late").write(late.folder)
        assert owner.publish()
        assert Outcome.read(home) == done("of owner")
    queue = Queue(home)
    queue.create()
    queue.put([Ticket(name="x", room="trials")])
    claim = queue.claim("late")
    assert queue.revive(claim.file, "observer") is None
    assert not claim.beat(), "the check before publishing fails"
    # whoever comes next takes nothing of it
    third = Desk(home, "third")
    assert third.published == done("of owner")
    assert not late.publish(), "its folder has a result, and not the order that came with the claim"
    assert third.published == done("of owner")


def test_folders_without_an_order_are_removed_and_those_with_a_run_are_preferred(home: Path) -> None:
    (home / "work@zombie" / "run").mkdir(parents=True)
    Desk(home, "empty").open()
    (home / "work@real").mkdir()
    (home / "work@real" / "trial.json").write_text("{}")
    (home / "work@real" / "run").mkdir()
    (home / "work@real" / "run" / "x").write_text("real")
    desk = Desk(home, "next")
    desk.open()
    assert (desk.folder / "run" / "x").read_text() == "real"
    assert [path.name for path in home.glob("work@*")] == ["work@next"]


def test_what_was_finished_and_not_published_is_not_run_again(home: Path) -> None:
    first = Desk(home, "a")
    first.open()
    (first.folder / "run").mkdir()
    done().write(first.folder)
    # killed after the run was moved and before the result was
    (first.folder / "run").rename(home / "run")
    second = Desk(home, "b")
    assert second.open() == done()
    assert second.publish()
    assert (home / "run").is_dir()
    assert Outcome.read(home) == done()


def test_an_attempt_that_is_given_back_leaves_its_run_where_local_processes_look(home: Path) -> None:
    desk = Desk(home, "a")
    desk.open()
    (desk.folder / "run").mkdir()
    desk.leave()
    assert sorted(path.name for path in home.iterdir()) == ["run", "trial.json"]


def test_a_journal_says_who_did_what(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.create()
    Journal(queue, "w").write("ended", Ticket(name="x", room="trials"), done())
    (line,) = (tmp_path / "queue" / "journal" / "w.jsonl").read_text().splitlines()
    assert {"event": "ended", "trial": "x", "status": "done"}.items() <= json.loads(line).items()


def test_letters_are_applied_whole_and_twice_does_no_harm(tmp_path: Path) -> None:
    node, desk = tmp_path / "node", tmp_path / "desk"
    for folder in (node, desk):
        folder.mkdir()
    sender = parcels.Sender(node)
    checkpoints = Checkpoints(node / "run" / "checkpoints", keep_last=1)
    for step in (1, 2):
        checkpoints.save(step, {}, {"n": step})
        checkpoints.mark_best(step)
        checkpoints.prune()
        letter = sender.letter()
        parcels.receive(desk, letter)
        assert sender.letter() is None
    assert Checkpoints(desk / "run" / "checkpoints").newest().state["n"] == 2
    assert Checkpoints(desk / "run" / "checkpoints").best().step == 2
    assert Checkpoints(desk / "run" / "checkpoints").steps() == [2]
    # killed between two files of a letter: the next owner applies it again
    (node / "result.json").write_text("{}")
    (node / "run" / "spec.toml").write_text("x")
    letter = sender.letter()
    applied, parcels.apply = parcels.apply, lambda _: None
    try:
        parcels.receive(desk, letter)
    finally:
        parcels.apply = applied
    assert not (desk / "result.json").exists()
    parcels.apply(desk)
    parcels.apply(desk)
    assert (desk / "result.json").exists()
    assert (desk / "run" / "spec.toml").read_text() == "x"
    assert not (desk / "incoming").exists()


@pytest.mark.parametrize("name", ["../x", "/etc/x", "run/../../x", "linked/x"])
def test_a_node_cannot_write_outside_of_its_trial(tmp_path: Path, name: str) -> None:
    from kinfolk.core.errors import DataError

    trial, elsewhere = tmp_path / "trial", tmp_path / "elsewhere"
    for folder in (trial, elsewhere):
        folder.mkdir()
    (trial / "linked").symlink_to(elsewhere)
    with pytest.raises(DataError, match="outside of its trial"):
        parcels.receive(trial, {"files": {name: b""}, "links": {}, "names": []})
    assert list(elsewhere.iterdir()) == []


def test_files_travel_by_hash_and_are_unpacked_once(tmp_path: Path) -> None:
    data = tmp_path / "my.txt"
    data.write_text("abc")
    held: dict[str, parcels.Files] = {}

    def digest_of(path: Path, prefix: str) -> str:
        digest, files = parcels.pack(path, prefix)
        held[digest] = files
        return digest

    order = {"data": {"name": f"labelled:text=a,label=b:{data}", "cache": "/here"}, "begins": {}, "seed": 3}
    shipment = parcels.Shipment.of(order, digest_of)
    assert str(tmp_path) not in json.dumps(shipment.order)
    asked: list[str] = []

    def place_of(digest: str) -> Path:
        return parcels.unpack(digest, lambda: asked.append(digest) or held[digest], tmp_path / "node")

    for _ in range(2):
        name = parcels.arrived(shipment.order, place_of)["data"]["name"]
        base, _, path = name.rpartition(":")
        assert base == "labelled:text=a,label=b"
        assert Path(path).read_text() == "abc"
    assert len(asked) == 1
