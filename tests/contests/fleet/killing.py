"""What tests of deaths share: what trials have left, who ended them, and comparisons until enough has been killed."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kinfolk.contests.fleet.queue import DEATHS, Queue, Ticket
from kinfolk.core.durable import digest
from tests.train.toy import rows

TURNS = 4
"""Comparisons for each kill that may be run until as much was killed as a test asks for: some end before their kill."""


def happened(home: Path, event: str) -> dict[str, int]:
    """Return how often something happened to each trial, as the journals tell."""
    lines = [line for file in home.glob("queue/journal/*.jsonl") for line in file.read_text().splitlines()]
    entries = [json.loads(line) for line in lines]
    return dict(Counter(entry["trial"] for entry in entries if entry["event"] == event))


def ended(home: Path) -> dict[str, int]:
    """Return how often each trial was run to its end."""
    return happened(home, "ended")


def trained(home: Path) -> dict[str, tuple[str, list[dict]]]:
    """Return what every trial has left: the hash of its weights, and the figures of every step and validation."""
    runs = {folder.name: folder / "run" for folder in (home / "trials").iterdir()}
    return {name: (digest(run / "model.safetensors"), rows(run)) for name, run in runs.items()}


def spared(home: Path) -> bool:
    """Tell whether trials run, and each of them may lose one more worker."""
    claims = Queue(home).claims()
    try:
        return bool(claims) and all(Ticket.read(file).deaths < DEATHS - 1 for file in claims)
    except FileNotFoundError:
        return False


def until_killed(kills: int, killed: list[object], compare: Callable[[int], None]) -> None:
    """Run comparisons, each in a folder of its own, until `killed` has `kills` entries: on any machine, all of them."""
    for turn in range(max(1, TURNS * kills)):
        compare(turn)
        if len(killed) >= kills:
            return
    raise AssertionError(f"{len(killed)} of {kills} were killed in {TURNS * kills} comparisons")
