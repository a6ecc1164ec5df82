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
    if not console.is_terminal:
        # a file or a pipe has no edge to wrap at
        console.width = max(console.width, 120)
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
        "final": f"{number(row.final)} ± {row.spread:.4f}" if row.spread is not None else number(row.final),
        "of": row.measure or NONE,
        "bits/byte": number(row.bits_per_byte),
        "early": number(row.early),
        "params": amount(row.params, 3) if row.params else NONE,
        "FLOPs/token": amount(row.flops_per_token, 3) if row.flops_per_token else NONE,
        "tokens/s": amount(row.tokens_per_second, 3) if row.tokens_per_second else NONE,
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
    """Lay the rows out, each group under the name of its measure."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    columns = [name for name in cells(rows[0]) if name != "of"]
    for name in columns:
        # a long name stands on two lines, so that the table fits a terminal of 80 columns
        short = name.replace(" ", "\n").replace("/", "/\n")
        table.add_column(short, justify="left" if name in WORDS else "right", no_wrap=True)
    for i, row in enumerate(rows):
        following = rows[i + 1].measure if i + 1 < len(rows) else row.measure
        if i == 0 or rows[i - 1].measure != row.measure:
            above = row.measure or "no result"
            table.add_row("", Text(above, style="italic dim"))
        style = "bold" if row.rank == 1 else "dim" if row.final is None else ""
        said = cells(row)
        table.add_row(*(Text(said[name]) for name in columns), style=style, end_section=following != row.measure)
    return table
