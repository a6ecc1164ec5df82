"""The queue of trials in a shared folder: claims, heartbeats, deaths."""

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from kinfolk.contests.fleet.queue import BUCKET, DEATHS, Queue, Ticket, Watch
from kinfolk.core.errors import DataError


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    made = Queue(tmp_path)
    made.create()
    return made


def tickets(n: int) -> list[Ticket]:
    return [Ticket(name=f"gpt2-seed{i:05}-abc", room="trials") for i in range(n)]


@pytest.mark.parametrize("step", [1, -1])
def test_tickets_are_claimed_in_order_over_buckets(queue: Queue, step: int) -> None:
    """Seed 0 of every contestant comes first, whatever the contestants are called."""
    rows = tickets(2 * BUCKET + 3)[::step]
    assert queue.put(rows) == len(rows)
    order = [queue.claim("a").ticket for _ in rows]
    assert order == rows
    assert queue.claim("a") is None
    assert list(queue.waiting.iterdir()) == []


def test_a_ticket_is_put_once_whatever_its_state(queue: Queue) -> None:
    rows = tickets(3)
    queue.put(rows)
    queue.claim("a")
    assert queue.put(rows) == 0
    assert queue.count() == {"waiting": 2, "running": 1}
    # a driver that comes back adds what is new, behind what waits
    assert queue.put([*rows, Ticket(name="aaa", room="trials")]) == 1
    assert [queue.claim("b").ticket.name for _ in range(3)][-1] == "aaa"


def test_of_many_workers_one_gets_a_ticket(queue: Queue) -> None:
    rows = tickets(200)
    queue.put(rows)
    got: list[str] = []
    barrier = threading.Barrier(8)

    def work(name: str) -> None:
        barrier.wait()
        while claim := queue.claim(name):
            got.append(claim.ticket.name)
            queue.end(claim)

    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [row.name for row in rows]
    assert sorted(ticket.name for ticket in queue.collect()) == sorted(got)
    assert queue.collect() == []


def test_a_worker_takes_only_what_it_accepts(queue: Queue) -> None:
    queue.put(tickets(3))
    claim = queue.claim("a", lambda ticket: ticket.name.endswith("00001-abc"))
    assert claim.ticket == tickets(3)[1]
    assert [queue.claim("b").ticket for _ in range(2)] == [tickets(3)[0], tickets(3)[2]]


@pytest.mark.parametrize("skew", [-1e9, 0.0, 1e9])
def test_a_silent_worker_is_dead_by_the_observers_clock(queue: Queue, skew: float) -> None:
    """Time stamps of another host may be years off: only that they change counts."""
    queue.put(tickets(2))
    silent, alive = queue.claim("silent"), queue.claim("alive")
    now = [100.0]
    watch = Watch(queue, patience=60, clock=lambda: now[0])
    for claim in (silent, alive):
        os.utime(claim.file, (2e9 + skew, 2e9 + skew))
    assert watch.dead() == []
    now[0] += 59
    os.utime(alive.file, (2e9 + skew + 1, 2e9 + skew + 1))
    assert watch.dead() == []
    now[0] += 2
    assert watch.dead() == [silent.file]
    assert queue.revive(silent.file) is None
    assert not silent.beat(), "the dead worker learns that its claim is lost"
    assert alive.beat()
    again = queue.claim("c").ticket
    assert again == dataclasses.replace(silent.ticket, deaths=1, reason="silent gave no sign of life")


def test_after_too_many_deaths_a_trial_is_given_up(queue: Queue) -> None:
    queue.put(tickets(1))
    for death in range(1, DEATHS + 1):
        gone = queue.revive(queue.claim(f"w{death}").file)
        assert (gone is not None) == (death == DEATHS)
    assert queue.claim("last") is None
    assert [ticket.deaths for ticket in queue.collect()] == [DEATHS]


def test_two_observers_revive_once(queue: Queue) -> None:
    queue.put(tickets(1))
    file = queue.claim("a").file
    assert queue.revive(file) is None
    assert queue.revive(file) is None
    assert queue.claim("b").ticket.deaths == 1


def test_a_ticket_that_was_given_back_is_next(queue: Queue) -> None:
    queue.put(tickets(BUCKET + 2)[::-1])
    first, second = queue.claim("a"), queue.claim("a")
    queue.release(second)
    assert queue.claim("b").ticket == second.ticket
    queue.release(first)
    assert queue.claim("b").ticket == first.ticket


def test_a_ticket_is_given_back_while_another_worker_removes_the_empty_bucket(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put(tickets(1))
    claim, rename = queue.claim("a"), Path.rename
    lost: list[Path] = []

    def after_a_removal(file: Path, target: Path) -> Path:
        if not lost:
            lost.append(target.parent)
            target.parent.rmdir()
        return rename(file, target)

    monkeypatch.setattr(Path, "rename", after_a_removal)
    queue.release(claim)
    assert lost
    assert queue.count() == {"waiting": 1, "running": 0}


def test_tickets_of_an_earlier_version_have_no_number_and_are_claimed(queue: Queue) -> None:
    (old,) = tickets(1)
    old.write(queue.waiting / "00000" / old.name)
    assert queue.put([old]) == 0
    assert queue.claim("a").ticket == old


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"name": "../../x", "room": "trials"}', '{"name": "x", "room": ".."}', '{"nam": 1}'),
        *(
            f'{{"name": "x", "room": "trials", {field}}}'
            for field in (
                *('"limit": "9"', '"limit": 0', '"limit": -1.0', '"limit": NaN', '"limit": Infinity', '"limit": true'),
                *('"threads": 0', '"threads": 1.5', '"threads": true', '"deaths": -1', '"deaths": "1"'),
                *('"requires": []', '"requires": {"a": 1}', '"reason": null'),
            )
        ),
    ],
)
def test_what_is_no_ticket_is_refused_by_its_file(queue: Queue, text: str) -> None:
    (queue.waiting / "00000").mkdir()
    (queue.waiting / "00000" / "x").write_text(text)
    with pytest.raises(DataError, match="00000/x: is not a ticket"):
        queue.claim("a")


def test_a_ticket_is_not_held_while_a_worker_looks_at_what_it_requires(queue: Queue) -> None:
    """Opening data may take minutes, in which nothing beats."""
    queue.put([Ticket(name="x", room="trials", limit=9.5)])
    seen: list[dict[str, int]] = []
    assert queue.claim("a", lambda _: seen.append(queue.count()) or False) is None
    assert seen == [{"waiting": 1, "running": 0}] == [queue.count()]


def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("a file in the way")
    with pytest.raises(DataError, match="workers cannot share this folder"):
        Queue(tmp_path).create()
