"""A comparison beside a published table, on screen; and the rows of a table before anything is run."""

from rich import box
from rich.console import Group
from rich.table import Table as Grid
from rich.text import Text

from kinfolk.contests.published import Beside, Line
from kinfolk.core.console import Console
from kinfolk.family.tables import Table

NONE = "-"


def cells(line: Line) -> dict[str, str]:
    """Return what is said of a row, column by column; two numbers are ours and the published one."""
    return {
        "rank": _pair(line.rank, line.rank_published, "d"),
        "row": line.name,
        "final loss": _pair(line.final, line.final_published, "+.3f"),
        "early loss": _pair(line.early, line.early_published, "+.3f"),
        "params": _pair(line.params, line.params_published, ".2f"),
        "ops": _pair(line.ops, line.ops_published, ".2f"),
        "speed": _pair(line.speed, line.speed_published, ".2f"),
        "holds": line.holds or NONE,
    }


def show_beside(found: Beside, console: Console) -> None:
    """Print ours beside what was published."""
    title = f"{found.title} Ours | published; losses as differences to {found.baseline}, the rest as factors of it"
    grid = Grid(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in cells(Line(name="")):
        left = name in ("row", "holds")
        grid.add_column(name, justify="left" if left else "right", no_wrap=name != "row")
    for line in found.lines:
        grid.add_row(*map(Text, cells(line).values()))
    console.print(Group(grid, *(Text(said, style="dim") for said in found.sentences())))


def show_rows(table: Table, console: Console) -> None:
    """Print the rows of a table: names for `--rows`, what was published, and whether they can be run."""
    if not console.is_terminal:
        console.width = max(console.width, 160)
    grid = Grid(title=table.paper, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for name in ("--rows", "row", "params", "ops", "steps/s", "early loss", "final loss", "here"):
        left = name in ("--rows", "row", "here")
        grid.add_column(name, justify="left" if left else "right", no_wrap=name == "--rows")
    for row in table.rows:
        p = row.published
        spread = f" ± {p.early_spread:.3f}" if p.early_spread is not None else ""
        figures = (_number(p.params, "g", "M"), _number(p.ops, ".1f", "T"), _number(p.steps_per_second, ".2f"))
        losses = (f"{_number(p.early, '.3f')}{spread}", _number(p.final, ".3f"))
        here = (
            "; ".join(filter(None, (row.changes, row.claim, row.differs)))
            if row.change
            else f"not available: {row.missing}"
        )
        grid.add_row(row.key, row.name, *figures, *losses, here, style="" if row.change else "dim")
    console.print(grid)


def _pair(ours: float | None, theirs: float | None, form: str) -> str:
    return f"{_number(ours, form)} | {_number(theirs, form)}"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return NONE if value is None else f"{value:{form}}{unit}"
