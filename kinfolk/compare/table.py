"""The result on screen."""

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kinfolk.compare.budget import amount
from kinfolk.compare.results import Row
from kinfolk.compare.statistics import ALIKE, LEVEL, WORSE

NONE = "-"

WORDS = ("contestant", "of")
"""Columns that are words and so stand on the left."""


def show(rows: Sequence[Row], console: Console, title: str = "") -> None:
    """Print the table and what its marks and numbers mean."""
    console.print(Group(_table(rows, title), *(Text(line, style="dim") for line in notes(rows))))


def notes(rows: Sequence[Row]) -> list[str]:
    """Say what a reader of these rows must know."""
    lines = [f"{row.name}: {row.note}" for row in rows if row.note]
    marks = {row.mark for row in rows}
    if all(row.seeds <= 1 for row in rows):
        lines.append("1 seed: no test, and a difference may be luck")
    if WORSE in marks:
        lines.append(f"{WORSE} worse than the first of its group (Welch's test over seeds, p < {LEVEL:g} after Holm)")
    if ALIKE in marks:
        lines.append(f"{ALIKE} not told apart from the first of its group")
    return lines


def cells(row: Row) -> dict[str, str]:
    """Return what the table says of a contestant, column by column."""
    return {
        "rank": f"{row.rank} {row.mark}".rstrip() if row.rank else NONE,
        "contestant": row.name,
        "final loss": f"{number(row.final)} ± {row.spread:.4f}" if row.spread is not None else number(row.final),
        "of": row.measure or NONE,
        "bits/byte": number(row.bits_per_byte),
        "early loss": number(row.early),
        "parameters": amount(row.params) if row.params else NONE,
        "FLOPs/token": amount(row.flops_per_token) if row.flops_per_token else NONE,
        "tokens/s": amount(row.tokens_per_second) if row.tokens_per_second else NONE,
        "peak memory": memory(row.peak_bytes),
    }


def number(value: float | None) -> str:
    """Write a loss."""
    return NONE if value is None else f"{value:.4f}"


def memory(size: float | None) -> str:
    """Write bytes in megabytes or gigabytes."""
    if not size:
        return NONE
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _table(rows: Sequence[Row], title: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in cells(rows[0]) if rows else ():
        table.add_column(column, justify="left" if column in WORDS else "right", no_wrap=True)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        style = "bold" if row.rank == 1 else "dim" if row.final is None else ""
        last = following is not None and following.measure != row.measure
        table.add_row(*(Text(cell) for cell in cells(row).values()), style=style, end_section=last)
    return table
