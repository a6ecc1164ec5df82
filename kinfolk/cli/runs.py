"""`kin runs`: a table of the runs, comparisons and models below a folder, with scores, dates and sizes.

Reads names, TOML and JSON only: nothing is imported or executed, and a damaged folder is listed as such.
"""

import argparse
import dataclasses
import datetime
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError

EPILOG = """\
examples:
  kin runs                 everything below the folder runs
  kin runs studies --json  the same of another folder, for a program

A run that was stopped is listed as unfinished: kin resume RUN continues it."""
DEPTH = 6
"""Folders within folders that are searched."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A folder that one of our verbs wrote. score: the metric and value that select among runs of its kind."""

    path: str
    what: str
    of: str
    score: str
    date: str
    bytes: int


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="where to look (default: runs)")


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    if not Path(args.folder).is_dir():
        raise DataError(f"{args.folder}: no such folder; kin train and kin compare write runs with --out")
    rows = list(listed(Path(args.folder)))
    if args.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return 0
    if not rows:
        print(f"{args.folder}: no runs here")
        return 0
    table = [("run", "what", "of", "score", "date", "size")]
    table += [(row.path, row.what, row.of, row.score, row.date, _size(row.bytes)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) > shutil.get_terminal_size().columns:
        _folded(table)
        return 0
    for line in table:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _folded(table: Sequence[Sequence[str]]) -> None:
    """Print a table that is wider than the terminal: long cells on several lines, dates and sizes whole."""
    from rich.table import Table
    from rich.text import Text

    from kinfolk.core.console import Console

    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="")
    for name in table[0]:
        grid.add_column(name, overflow="fold", no_wrap=name == "size", min_width=10 if name == "date" else None)
    for row in table[1:]:
        grid.add_row(*map(Text, row))
    Console().print(grid)


def listed(folder: Path, depth: int = DEPTH) -> Iterator[Found]:
    """Yield what is in a folder and below; what is inside a run or a comparison belongs to it."""
    row = described(folder)
    if row is not None:
        yield row
        return
    try:
        inner = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    for path in inner if depth else ():
        yield from listed(Path(path), depth - 1)


def described(folder: Path) -> Found | None:
    """Return what a folder is, by the files in it; None if it is none of ours."""
    for mark, describe in MARKS.items():
        file = folder / mark
        if file.is_file():
            what, of, score = describe(folder)
            newest = max((folder / name).stat().st_mtime for name in (mark, "result.json") if (folder / name).is_file())
            date = datetime.datetime.fromtimestamp(newest).strftime("%Y-%m-%d %H:%M")
            return Found(str(folder), what, of, score, date, _bytes(folder))
    return None


def _run(folder: Path) -> tuple[str, str, str]:
    recipe, result = _read(tomllib.loads, folder / "spec.toml"), _read(json.loads, folder / "result.json")
    about = _read(tomllib.loads, folder / "run.toml")
    data = about.get("data", {})
    source = str(data.get("name") or data.get("env") or "") if isinstance(data, dict) else ""
    # the name of a file, without the folders and options before it
    source = source.rpartition(":")[2].rstrip("/").rpartition("/")[2] if "/" in source else source
    of = f"{recipe.get('name', '?')}{f' on {source}' if source else ''}"
    if not (folder / "result.json").is_file() and not (folder / "model.safetensors").is_file():
        return "unfinished run", of, ""
    return "run", of, _score(result)


def _score(result: dict[str, Any]) -> str:
    metrics = result.get("valid") or {"loss": result.get("loss")}
    if isinstance(metrics, dict):
        number = next(((name, value) for name, value in metrics.items() if isinstance(value, int | float)), None)
        if number is not None:
            return f"{number[0]} {number[1]:.4g}"
    return ""


def _comparison(folder: Path) -> tuple[str, str, str]:
    result = _read(json.loads, folder / "results.json")
    if "tasks" in result:
        return "suite", str(result.get("title", "")), ""
    rows = [row for row in result.get("rows", []) if isinstance(row, dict)]
    of = ", ".join(str(row.get("name")) for row in rows)
    if not rows or not isinstance(rows[0].get("final"), int | float):
        return "comparison", of, "no result"
    return "comparison", of, f"{rows[0].get('name')}: {rows[0].get('measure') or 'score'} {rows[0]['final']:.4g}"


MARKS = {
    "results.json": _comparison,
    "layout.json": lambda folder: ("unfinished comparison", _contestants(folder), ""),
    "run.toml": _run,
    "spec.toml": lambda folder: ("model", str(_read(tomllib.loads, folder / "spec.toml").get("name", "")), ""),
    "config.json": lambda folder: (
        "Hugging Face folder",
        str(_read(json.loads, folder / "config.json").get("model_type", "")),
        "",
    ),
}


def _contestants(folder: Path) -> str:
    trials = (path.name.partition("-seed")[0] for path in sorted((folder / "trials").glob("*-seed*")))
    return ", ".join(dict.fromkeys(trials))


def _read(parse: Callable[[str], Any], file: Path) -> dict[str, Any]:
    """Return what a file holds; nothing where it is missing, damaged, or no table."""
    try:
        data = parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _bytes(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(base) / name).lstat().st_size
            except OSError:
                continue
    return total


def _size(n: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError
