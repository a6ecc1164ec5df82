"""What tests of deaths share: who ended what, as the journals tell, and comparisons until enough has been killed."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kinfolk.contests.fleet.queue import DEATHS, Queue, Ticket

TURNS = 4
"""Comparisons for each kill that may be run until as much was killed as a test asks for: some end before their kill."""


def ended(home: Path) -> dict[str, int]:
    """Return how often each trial was run to its end."""
    lines = [line for file in home.glob("queue/journal/*.jsonl") for line in file.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    return dict(Counter(event["trial"] for event in events if event["event"] == "ended"))


def spared(home: Path) -> bool:
    """Tell whether trials run, and each of them may lose one more worker."""
    claims = Queue(home).claims()
    try:
        return bool(claims) and all(Ticket.read(file).deaths < DEATHS - 1 for file in claims)
    except FileNotFoundError:
        return False


def until_killed(kills: int, killed: list[object], compare: Callable[[int], None]) -> None:
    """Run comparisons, each in a folder of its own, until `killed` has `kills` entries: on any machine, all of them."""
    for turn in range(TURNS * kills):
        compare(turn)
        if len(killed) >= kills:
            return
    raise AssertionError(f"{len(killed)} of {kills} were killed in {TURNS * kills} comparisons")
