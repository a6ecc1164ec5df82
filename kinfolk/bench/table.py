"""Standings on screen and for machines."""

import dataclasses
import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from kinfolk.bench import growth, limits, memory
from kinfolk.bench.runner import BenchRow, BenchStanding

NONE = "-"
BUSY = 0.5
"""Share of the cores above which other work counts as a disturbance."""
VERSIONS = (
    *("kinfolk", "torch", "transformers", "x-transformers", "local-attention", "linformer", "performer-pytorch"),
    *("reformer-pytorch", "linear-attention-transformer"),
)


def machine() -> dict[str, Any]:
    """Describe where this is measured: kind of processor, cores, versions, and how busy it is."""
    return {
        "processor": limits.processor(),
        "instructions": limits.instruction_sets(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version for name in VERSIONS if (version := _version(name))},
        "load_before": round(os.getloadavg()[0], 2),
    }


def plain(standings: Iterable[BenchStanding], where: dict[str, Any]) -> dict[str, Any]:
    """Return everything as plain data."""
    return {"machine": where, "contests": [_contest(s) for s in standings], "notes": notes(list(standings), where)}


def text(standings: Sequence[BenchStanding], where: dict[str, Any]) -> str:
    """Return all tables, and what a reader must know."""
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    head = f"{where['cores']} cores, {where['processor']}, Python {where['python']}, {versions}"
    if where.get("instructions"):
        head += f"\ninstruction sets: {', '.join(where['instructions'])}"
    return "\n\n".join([head, *(_table(s) for s in standings), "\n".join(notes(standings, where))])


def notes(standings: Sequence[BenchStanding], where: dict[str, Any]) -> list[str]:
    """Say what the figures mean together, and what may be wrong with them."""
    lines = growth.lines(standings)
    lines += memory.lines(standings)
    if where["load_before"] > BUSY * (where["cores"] or 1):
        lines.append(
            f"the machine was busy (load {where['load_before']:g} on {where['cores']} cores): ratios are between "
            "neighbours in time, times are not to be trusted"
        )
    lines.append("speed and memory: medians over rounds of the ratio to the contestant that has 1.00")
    return [line for line in lines if line]


def cells(row: BenchRow, standing: BenchStanding) -> dict[str, str]:
    """Return what the table says of a contestant, column by column."""
    unit = standing.contest.unit
    found = {
        "contestant": row.name,
        "speed": _number(row.speed, ".2f"),
        "ms": _number(None if row.seconds is None else 1e3 * row.seconds, ",.1f"),
        "±": "" if row.spread is None else f"{100 * row.spread:.0f} %",
    }
    if not unit:
        return found
    if any(other.rival for other in standing.rows):
        found |= {"× peer": _number(row.rival_speed, ".2f"), "memory × peer": _number(row.rival_memory, ".2f")}
    if standing.contest.size:
        found |= {standing.contest.size: NONE if row.value is None else f"{row.value / 1e3:,.0f} kB"}
    if standing.contest.number:
        found |= {standing.contest.number: _number(row.value, ".2f")}
    if standing.bandwidth:
        found |= {"of read limit": _share(row.read_share)}
    return found | {
        f"{unit}/s": _number(row.units_per_second, ",.0f"),
        "MFU": _share(row.mfu),
        "memory": _number(row.memory, ".2f"),
        "growth": _megabytes(row.growth_bytes),
        "process": _megabytes(row.total_bytes),
        "parameters": f"{row.parameters:,}" if row.parameters else NONE,
    }


def _table(standing: BenchStanding) -> str:
    settings = standing.settings
    rows = [cells(row, standing) for row in standing.rows]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    peak = f", GEMM peak {standing.gemm / 1e9:.0f} GFLOP/s" if standing.gemm else ""
    peak += f", read limit {standing.bandwidth / 1e9:.1f} GB/s" if standing.bandwidth else ""
    lines = [
        standing.contest.title,
        f"beside {standing.contest.beside}; {settings.rounds} rounds, {settings.threads} threads, "
        f"allocator: {settings.allocator}{peak}",
        "  ".join(_aligned(name, name, widths) for name in widths),
    ]
    for row, written in zip(standing.rows, rows, strict=True):
        line = "  ".join(_aligned(name, written[name], widths) for name in widths)
        lines.append(f"{row.name}: {row.note}" if row.seconds is None else f"{line}  {row.note}".rstrip())
    return "\n".join(lines)


def _contest(standing: BenchStanding) -> dict[str, Any]:
    contest = standing.contest
    return {
        "subject": contest.subject,
        "title": contest.title,
        "sizes": dict(contest.sizes),
        "beside": contest.beside,
        "unit": contest.unit,
        "settings": dataclasses.asdict(standing.settings),
        "gemm_flops": standing.gemm,
        "read_bandwidth": standing.bandwidth,
        "rows": [dataclasses.asdict(row) for row in standing.rows],
    }


def _aligned(column: str, value: str, widths: dict[str, int]) -> str:
    return value.ljust(widths[column]) if column == "contestant" else value.rjust(widths[column])


def _number(value: float | None, how: str) -> str:
    return NONE if value is None else format(value, how)


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _megabytes(size: float | None) -> str:
    return NONE if size is None else f"{size / 1e6:,.0f} MB"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
