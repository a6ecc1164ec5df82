"""Published tables that can be run again: every row a recipe, with the figures it was printed with beside it.

A table is a module with rows in the order of the paper. A row is one line: its name there, its figures, what it
changes in words, and the change itself, a function from the baseline's recipe to its own. A row whose part does not
exist yet says so instead (`pending`), so that a report can name it.
"""

import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.about import About

if TYPE_CHECKING:
    from kinfolk.family.recipe import Recipe

NAMES = ("narang", "modern")

Change = Callable[["Recipe"], "Recipe"]


@dataclasses.dataclass(frozen=True)
class Published:
    """The printed figures; None where the source cannot be read.

    params: in millions. ops: in trillions, of a step or an example as the paper counts them. early_spread: standard
    deviation over seeds.
    """

    params: float | None
    ops: float | None
    steps_per_second: float | None
    early: float | None
    early_spread: float | None
    final: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row: `key` is its name on a command line, `missing` why it has no change, `claim` what its paper says.

    differs: how what is run here is not what was run there, where more than the size is another.
    """

    name: str
    key: str
    published: Published
    changes: str
    change: Change | None = None
    missing: str = ""
    differs: str = ""
    claim: str = ""


class NotAtThisSizeError(SpecError):
    """Raised for a table row that means nothing at this size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Rows and the baseline that they change, which is the first row and a function from numbers to a recipe."""

    name: str
    title: str
    paper: str
    year: int
    baseline: Callable[..., "Recipe"]
    rows: tuple[TableRow, ...]
    topology: str = "encoder-decoder"

    def about(self, row: TableRow) -> About:
        """Return what is known of a row, as of a relative."""
        return About(
            name=row.name,
            parent=None if row is self.rows[0] else self.rows[0].name,
            year=self.year,
            paper=self.paper,
            topology=self.topology,
            causal=True,
            input="tokens",
            changes=row.changes,
        )

    def recipe(self, row: TableRow, size: str = "base", **numbers: Any) -> "Recipe":
        """Return the recipe of a row at a size, or with other numbers of the baseline."""
        from kinfolk.family.sizes import SIZES, fit

        if row.change is None:
            raise SpecError(f"row {row.name!r} of {self.name}: not available: {row.missing}")
        known = inspect.signature(self.baseline).parameters
        of_size = {name: number for name, number in SIZES[size].numbers.items() if name in known}
        recipe = self.baseline(**(of_size | numbers))
        recipe = recipe.replace(training=fit(recipe.training, SIZES[size]))
        return row.change(recipe).replace(name=row.name)

    def pick(self, asked: str) -> tuple[TableRow, ...]:
        """Choose rows: "" all, a number N of them, else names or keys between commas. The baseline is among them.

        A number takes the baseline and rows spread evenly over the published losses, of those that can be run.
        """
        if not asked.strip():
            return self.rows
        if asked.strip().isdecimal():
            return self._spread(int(asked))
        named = [self.row(name) for name in _split(asked, self.rows)]
        return tuple(row for row in self.rows if row is self.rows[0] or row in named)

    def row(self, name: str) -> TableRow:
        """Return a row by its name in the paper or its key; an unknown one is refused with the nearest match."""
        known = {key: row for row in self.rows for key in (row.key, slug(row.name))}
        if slug(name) not in known:
            raise SpecError(f"row {name!r} of {self.name}: unknown{suggest(slug(name), [r.key for r in self.rows])}")
        return known[slug(name)]

    def _spread(self, n: int) -> tuple[TableRow, ...]:
        if n < 1:
            raise SpecError(f"rows: {n} is not allowed; at least 1")
        first, *rest = self.rows
        able = sorted((r for r in rest if r.change and r.published.final), key=lambda r: r.published.final or 0.0)
        n = min(n - 1, len(able))
        chosen = [able[round(i * (len(able) - 1) / max(1, n - 1))] for i in range(n)]
        return tuple(row for row in self.rows if row is first or row in chosen)


def pending(part: str) -> Mapping[str, Any]:
    """Say that a row waits for a part."""
    return {"missing": f"{part} is not part of the family yet"}


def slug(name: str) -> str:
    """Return a name in the form of a key."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("&", "and")).strip("-")


@functools.cache
def table(name: str) -> Table:
    """Return a table by name; an unknown one is refused with the nearest match."""
    if name not in NAMES:
        raise SpecError(f"table {name!r}: unknown{suggest(name, NAMES)}")
    found: Table = importlib.import_module(f"{__name__}.{name}").TABLE
    return found


def _split(asked: str, rows: Sequence[TableRow]) -> list[str]:
    """Split at commas, but not at those inside a row's own name."""
    for row in rows:
        if "," in row.name:
            asked = asked.replace(row.name, row.key)
    return [name.strip() for name in asked.split(",") if name.strip()]
