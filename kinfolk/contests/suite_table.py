"""The tables of a suite on screen."""

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from kinfolk.contests.report.suite import costs, published, scores
from kinfolk.contests.suite_result import SuiteResult
from kinfolk.core.console import Console


def show(result: SuiteResult, console: Console) -> None:
    """Print scores, costs, and the published table beside them."""
    if not console.is_terminal:
        console.width = max(console.width, 160)
    _print(scores(result), f"{result.suite.name}: accuracy in per cent", console)
    origin = result.suite.origin
    if result.suite.lengths:
        _print(costs(result), "a training step on text, by its length", console)
    if origin.rows:
        _print(published(result), origin.paper, console)
    console.print(Text(origin.note if origin.rows else f"{origin.paper}. {origin.note}", style="dim"))
    for standing in result.standings:
        for note in standing.notes:
            console.print(Text(f"{standing.name}, {note}", style="dim"))


def _print(lines: Sequence[Sequence[str]], title: str, console: Console) -> None:
    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(lines[0]):
        grid.add_column(name, justify="right" if i else "left", no_wrap=i == 0)
    for line in lines[1:]:
        grid.add_row(*map(Text, line))
    console.print(grid)
    console.print()
