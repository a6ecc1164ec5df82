"""The table of results on screen."""

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kinfolk.contests.budget import amount
from kinfolk.contests.inference import BETTER, LEVEL, OPEN, WORSE
from kinfolk.contests.results import MARKS, ResultRow, held_against, limits
from kinfolk.core.console import Console
from kinfolk.report.numbers import memory as memory

NONE = "-"

FAR = "~"
"""Beside a speed-up that extrapolates the baseline's law."""

CUT = "†"
"""Marks the score of a contestant that the clock cut short."""

WORDS = ("contestant", "of")
"""Columns of words, which are aligned left."""

SPARE = ("peak memory", "FLOPs/token", "early", "bits/byte", "as is", "tokens/s", "speed-up", "params", "rate")
"""Columns that a narrow terminal does without, the first of these first."""


def show(rows: Sequence[ResultRow], console: Console, title: str = "") -> None:
    """Print the table and what its marks and numbers mean."""
    if not console.is_terminal:
        # a file or a pipe has no edge to wrap at
        console.width = max(console.width, 120)
    columns = [name for name in max((cells(row) for row in rows), key=len) if name != "of"]
    shown = fitting(columns, rows, console.width)
    lines = notes(rows)
    if spared := [name for name in columns if name not in shown]:
        lines.append(f"left out at this width, see the report or --json: {', '.join(spared)}")
    console.print(Group(_table(rows, title, shown), *(Text(line, style="dim") for line in lines)))


def fitting(columns: Sequence[str], rows: Sequence[ResultRow], width: int) -> list[str]:
    """Return the columns that a terminal has room for."""
    said = [cells(row) for row in rows]
    room = {
        name: max(*(len(line) for line in _heading(name).split("\n")), *(len(row.get(name, NONE)) for row in said))
        for name in columns
    }
    shown = list(columns)
    for name in SPARE:
        if sum(room[one] + 1 for one in shown) - 1 > width and name in shown:
            shown.remove(name)
    return shown


def _heading(name: str) -> str:
    return name.replace(" ", "\n").replace("/", "/\n")


def notes(rows: Sequence[ResultRow]) -> list[str]:
    """Say what a reader of these rows must know."""
    lines = [f"{row.name}: {text}" for row in rows if (text := "; ".join(filter(None, (row.note, *_unsaid(row)))))]
    marks = {row.mark for row in rows}
    held = " or ".join(dict.fromkeys(held_against(rows, row.measure) for row in rows if row.mark))
    if all(row.seeds <= 1 for row in rows):
        lines.append("1 seed: no test, and a difference may be chance")
    if MARKS[WORSE] in marks:
        sure = f"simultaneous {1 - LEVEL:.0%} intervals over paired seeds"
        lines.append(f"{MARKS[WORSE]} worse than {held} ({sure})")
    if any(row.cut_short for row in rows):
        lines.append(f"{CUT} cut short by the clock: fewer steps than the budget was meant to allow")
    if MARKS[BETTER] in marks:
        lines.append(f"{MARKS[BETTER]} better than {held}")
    if any(row.speedup and row.speedup.value for row in rows):
        base = next(row.speedup.baseline for row in rows if row.speedup)
        lines.append(f"speed-up: as good as that many times the budget of {base}, times the ratio of tokens per second")
        if any(row.speedup and row.speedup.extrapolated for row in rows):
            lines.append(f"{FAR} an extrapolation: the law was fitted to budgets that are far from this one")
    if MARKS[OPEN] in marks:
        lines.append(f"{MARKS[OPEN]} not told apart from {held}")
    return lines + _limits(rows)


def _limits(rows: Sequence[ResultRow]) -> list[str]:
    """Say what these seeds can and cannot show, for each group."""
    lines = []
    for found in limits(rows):
        line = f"{found.measure}: noise floor {found.noise:.2g} between trials of one contestant; "
        line += f"{found.seeds} seeds show differences from {found.smallest:.2g}"
        if found.needed:
            line += f"; about {found.needed:,} seeds would decide what is open"
        lines.append(line)
    return lines


def cells(row: ResultRow) -> dict[str, str]:
    """Return what the table says of a contestant, column by column."""
    return {
        "rank": f"{row.rank} {row.mark}".rstrip() if row.rank else NONE,
        "contestant": row.name,
        "final": _final(row),
        **_tuned(row),
        "of": row.measure or NONE,
        "difference": interval(row),
        "bits/byte": number(row.bits_per_byte),
        "early": number(row.early),
        "params": amount(row.params, 3) if row.params else NONE,
        "FLOPs/token": amount(row.flops_per_token, 3) if row.flops_per_token else NONE,
        "tokens/s": amount(row.tokens_per_second, 3) if row.tokens_per_second else NONE,
        "peak memory": memory(row.peak_bytes) + (" (device)" if row.on_device else ""),
    }


def _tuned(row: ResultRow) -> dict[str, str]:
    """Return the columns of a comparison whose rates were tuned."""
    if row.rates is None:
        return {}
    return {"as is": number(row.as_is), "rate": f"{row.rates.chosen:.3g}", "speed-up": gain_of(row)}


def gain_of(row: ResultRow) -> str:
    """Return the effective speed-up, marked where it is an extrapolation."""
    found = row.speedup
    return NONE if found is None or not found.value else f"{FAR * found.extrapolated}{found.value:.2f}"


def _unsaid(row: ResultRow) -> list[str]:
    """Return flags that the note does not say yet."""
    return [flag for flag in row.flags if flag.split(" (")[0] not in row.note]


def _final(row: ResultRow) -> str:
    spread = "" if row.spread is None else f" ± {row.spread:.4f}"
    return f"{number(row.final)}{spread}{f' {CUT}' if row.cut_short else ''}"


def number(value: float | None) -> str:
    """Write a loss."""
    return NONE if value is None else f"{value:.4f}"


def interval(row: ResultRow) -> str:
    """Write the difference to the best or to a named baseline, with its simultaneous interval."""
    if row.p is None or row.difference is None or row.low is None or row.high is None:
        return NONE
    return f"{row.difference:+.4f} [{row.low:+.4f}, {row.high:+.4f}]"


def _table(rows: Sequence[ResultRow], title: str, columns: Sequence[str]) -> Table:
    """Lay the rows out, each group under the name of its measure."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    for name in columns:
        # a long name of a contestant is folded where there is no room for it; numbers are never cut
        table.add_column(
            _heading(name), justify="left" if name in WORDS else "right", no_wrap=name not in WORDS, overflow="fold"
        )
    for i, row in enumerate(rows):
        following = rows[i + 1].measure if i + 1 < len(rows) else row.measure
        if i == 0 or rows[i - 1].measure != row.measure:
            above = row.measure or "no result"
            table.add_row("", Text(above, style="italic dim"))
        style = "bold" if row.rank == 1 else "dim" if row.final is None else ""
        said = cells(row)
        table.add_row(
            *(Text(said.get(name, NONE)) for name in columns), style=style, end_section=following != row.measure
        )
    return table
