"""Results of `kin bench` kept by machine and version: one JSON line for each contest, and a check against the last.

Only ratios are compared, between runs on the same kind of processor with the same settings: times of two days are not
comparable, ratios between neighbours in time are.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.bench.runner import BenchRow, BenchStanding
from kinfolk.core.errors import SpecError

TOLERANCE = 0.03
"""Share by which a ratio may be worse than the kept one; rounds that vary more allow as much as they vary."""
Entry = Mapping[str, Any]


def entries(standings: Iterable[BenchStanding], where: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is kept of contests: ratios and how much rounds varied, with machine, versions and settings."""
    return [
        {
            "processor": where["processor"],
            "kinfolk": where["versions"].get("kinfolk", ""),
            "torch": where["versions"].get("torch", ""),
            "threads": standing.settings.threads,
            "allocator": standing.settings.allocator,
            "rounds": standing.settings.rounds,
            "contest": f"{standing.contest.subject}: {standing.contest.title}",
            "beside": standing.contest.beside,
            "rows": {row.name: _ratios(row) for row in standing.rows if row.seconds is not None},
        }
        for standing in standings
    ]


def read(path: Path) -> list[Entry]:
    """Return the entries of a history, the oldest first; none if there is no file."""
    if not path.exists():
        return []
    found: list[Entry] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            found.append({**entry, "rows": dict(entry["rows"]), "key": _key(entry)})
        except (ValueError, KeyError, TypeError):
            raise SpecError(f"{path}: line {number} is not an entry of a history") from None
    return found


def append(path: Path, new: Iterable[Entry]) -> None:
    """Add entries to a history."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in new)


def check(kept: Sequence[Entry], new: Iterable[Entry]) -> tuple[list[str], bool]:
    """Return a line for each ratio of ours that has a kept one, and whether none is worse than it may be."""
    last = {entry["key"]: entry for entry in kept}
    lines, good = [], True
    for entry in new:
        before = last.get(_key(entry))
        if before is None:
            lines.append(f"{entry['contest']}: no kept result on {entry['processor']} with these settings")
            continue
        for name in entry["rows"]:
            if name not in before["rows"] or entry["rows"][name]["peer"]:
                continue
            for what, line, worse in _changes(before["rows"][name], entry["rows"][name]):
                lines.append(f"{entry['contest']}, {name}: {what} {line} since {before['kinfolk']}")
                good = good and not worse
    return lines, good


def text(kept: Sequence[Entry]) -> str:
    """Return a history as lines: contests by machine, and the speed of every contestant version by version."""
    lines = []
    for key in dict.fromkeys(entry["key"] for entry in kept):
        mine = [entry for entry in kept if entry["key"] == key]
        lines.append(f"{key[0]}, {key[1]} threads, allocator: {key[2]}\n{mine[0]['contest']}, beside {key[4]}")
        for name in dict.fromkeys(name for entry in mine for name in entry["rows"]):
            speeds = (f"{e['kinfolk']} {e['rows'][name]['speed'] or 0:.2f}" for e in mine if name in e["rows"])
            lines.append(f"  {name:40} {', '.join(speeds)}")
    return "\n".join(lines)


def _ratios(row: BenchRow) -> dict[str, Any]:
    return {
        "peer": row.peer,
        "speed": row.speed,
        "memory": row.memory,
        "peer_speed": row.rival_speed,
        "spread": row.spread,
    }


def _key(entry: Entry) -> tuple[Any, ...]:
    return tuple(entry[name] for name in ("processor", "threads", "allocator", "contest", "beside"))


def _changes(before: Entry, now: Entry) -> Iterable[tuple[str, str, bool]]:
    """Yield each ratio with how it changed, and whether it is worse by more than rounds vary."""
    for what, faster in (("speed", True), ("peer_speed", True), ("memory", False)):
        old, new = before[what], now[what]
        if not old or not new:
            continue
        change = new / old if faster else old / new
        room = max(TOLERANCE, *((before["spread"] or 0.0, now["spread"] or 0.0) if faster else (0.0,)))
        worse = change < 1 - room
        yield what, f"{old:.2f} -> {new:.2f}{' WORSE' if worse else ''}", worse
