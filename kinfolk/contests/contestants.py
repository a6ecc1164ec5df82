"""Contestants: names of relatives, spec files, run folders, and tables of them, resolved to recipes.

A table is a TOML file that names contestants and says in a few numbers what each is:

    [contestants.deep]
    relative = "gpt2"
    n_layers = 8

    [contestants.wide]
    relative = "gpt2"
    size = "small"
    "training.optimiser.lr" = 3e-4
"""

import dataclasses
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from kinfolk.contests.settings import require
from kinfolk.core.errors import SpecError, suggest
from kinfolk.family import registry
from kinfolk.family.about import About
from kinfolk.family.building import read_recipe
from kinfolk.family.changes import parted
from kinfolk.family.making import divided, make, numbers_of
from kinfolk.family.recipe import Recipe
from kinfolk.family.sizes import SIZES
from kinfolk.family.tables import NotAtThisSizeError, Table, TableRow, table
from kinfolk.runs.fit import Needs
from kinfolk.runs.run import Run

FIRST = ("vanilla", "vanilla-pre", "gpt", "gpt2", "bert")
TABLES: dict[str, tuple[str, ...]] = {"first": FIRST}
"""Contests that have a name of their own."""


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One that takes part: a relative with some numbers, a recipe read from a file, or a row of a published table.

    `assignments` is what `--set` changes besides.
    """

    name: str
    relative: str = ""
    size: str = "tiny"
    variant: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    written: Recipe | None = None
    assignments: tuple[str, ...] = ()
    row: tuple[Table, TableRow] | None = None

    @property
    def about(self) -> About | None:
        """What is known of its relative."""
        if self.row is not None:
            return self.row[0].about(self.row[1])
        return registry.about(self.relative) if self.relative else None

    @property
    def changes(self) -> str:
        """What it changes, in its own words."""
        about = self.about
        if self.variant:
            return f"{self.relative} with {', '.join(self.variant)}"
        return about.changes if about else "a recipe of its own, from a file"

    @property
    def scalable(self) -> bool:
        """Whether its width may be changed: a relative's may, unless its numbers fix it; a file's is as written."""
        return self.written is None and "d_model" in self._known() and "d_model" not in self.overrides

    def recipe(self, needs: Needs, widths: Mapping[str, int] | None = None) -> Recipe:
        """Return its recipe for data with these needs, at other widths if they are given."""
        if self.written is not None:
            return needs.adapt(self.written.fitted(needs.vocab_size), self.assignments)
        numbers = self._known()
        scaled = {name: value for name, value in (widths or {}).items() if name in numbers}
        recipe = self._made(needs.numbers(numbers) | scaled | dict(self.overrides))
        return needs.adapt(recipe, self.assignments)

    def parent(self, needs: Needs) -> Recipe | None:
        """Return its parent with the same numbers, as far as the parent takes them; None at the root and for files."""
        elder = self._elder()
        if elder is None:
            return None
        try:
            return elder.recipe(needs)
        except SpecError:
            # a path of `--set` may lead to what only the child has
            return dataclasses.replace(elder, assignments=()).recipe(needs)

    def changed(self, assignments: Sequence[str]) -> Self:
        """Return it with `--set` applied: `n_layers=4` is a number of a relative, `model.dropout=0.1` a path."""
        if self.written is not None:
            return dataclasses.replace(self, assignments=tuple(assignments))
        numbers, rest = divided(assignments, self._known(), self.name)
        return dataclasses.replace(self, overrides={**self.overrides, **numbers}, assignments=rest)

    def widths(self, d_model: int) -> dict[str, int]:
        """Return a width, and the feed-forward width in proportion to it unless that is fixed."""
        numbers = self._known() | SIZES[self.size].numbers | dict(self.overrides)
        if "d_ff" not in self._known() or "d_ff" in self.overrides:
            return {"d_model": d_model}
        return {"d_model": d_model, "d_ff": max(8, round(numbers["d_ff"] * d_model / numbers["d_model"] / 8) * 8)}

    def _known(self) -> dict[str, Any]:
        function = registry.entry(self.relative).function if self.row is None else self.row[0].baseline
        return numbers_of(function)

    def _made(self, numbers: Mapping[str, Any]) -> Recipe:
        if self.row is None:
            return make("+".join((self.relative, *self.variant)), size=self.size, **numbers)
        return self.row[0].recipe(self.row[1], self.size, **numbers)

    def _elder(self) -> "Contestant | None":
        about = self.about
        if self.variant:
            return dataclasses.replace(self, name=self.relative, variant=())
        if about is None or about.parent is None:
            return None
        if self.row is not None:
            return dataclasses.replace(self, name=about.parent, row=(self.row[0], self.row[0].rows[0]))
        numbers = numbers_of(registry.entry(about.parent).function)
        same = {name: value for name, value in self.overrides.items() if name in numbers}
        return Contestant(about.parent, about.parent, self.size, overrides=same, assignments=self.assignments)


def gather(
    names: Sequence[str | Path], size: str = "tiny", assignments: Sequence[str] = (), labels: Sequence[str] = ()
) -> list[Contestant]:
    """Resolve names to contestants; an unknown or ambiguous name is refused before anything runs.

    labels: what they are called instead of their names, one for each.
    """
    require("size", size, SIZES)
    contestants = [each.changed(assignments) for name in (names or FIRST) for each in _named(name, size)]
    if labels:
        if len(labels) != len(contestants):
            names_of = ", ".join(contestant.name for contestant in contestants)
            raise SpecError(f"expected one contestant for each of {', '.join(labels)}, found {names_of}")
        contestants = [dataclasses.replace(one, name=label) for one, label in zip(contestants, labels, strict=True)]
    refuse_repeated(contestants, "a table of contestants gives names of its own")
    return contestants


def refuse_repeated(contestants: Sequence[Contestant], advice: str) -> None:
    """Refuse two contestants of one name."""
    for name, count in Counter(contestant.name for contestant in contestants).items():
        if count > 1:
            raise SpecError(f"contestant {name!r} is named twice; {advice}")


def gather_rows(
    name: str, rows: str, size: str = "tiny", assignments: Sequence[str] = ()
) -> tuple[list[Contestant], list[tuple[str, str]]]:
    """Find the rows of a published table that were asked for, and those of them that cannot be run, with the reason."""
    require("size", size, SIZES)
    contestants, missing, published = [], [], table(name)
    for row in published.pick(rows):
        if row.change is None:
            missing.append((row.name, row.missing))
            continue
        contestant = Contestant(row.name, size=size, row=(published, row)).changed(assignments)
        try:
            # what a row needs of a size does not depend on the vocabulary
            contestant.recipe(Needs(SIZES["tiny"].numbers["vocab_size"]))
        except NotAtThisSizeError as error:
            missing.append((row.name, str(error)))
        else:
            contestants.append(contestant)
    return contestants, missing


def _named(name: str | Path, size: str) -> Iterator[Contestant]:
    text, path = str(name), Path(name)
    relatives = registry.relatives()
    base, changes = parted(text)
    if base in relatives:
        yield Contestant(text, base, size, changes)
    elif text in TABLES:
        yield from (Contestant(each, each, size) for each in TABLES[text])
    elif path.suffix == ".toml" or path.is_dir():
        yield from _from_file(path, size)
    else:
        names = [*relatives, *TABLES]
        raise SpecError(f"contestant {text!r}: no relative, table, spec file or run of this name{suggest(text, names)}")


def _from_file(path: Path, size: str) -> Iterator[Contestant]:
    if path.is_dir():
        yield Contestant(path.name, written=Run.open(path).recipe)
        return
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not valid TOML: {error}") from None
    if "contestants" not in data:
        yield Contestant(path.stem, written=read_recipe(path))
        return
    extra = sorted(set(data) - {"contestants"})
    if extra or not isinstance(data["contestants"], dict):
        raise SpecError(f"{path}: a table of contestants has [contestants.NAME] and nothing else, found {extra}")
    for name, body in data["contestants"].items():
        yield _from_table(f"{path}: contestants.{name}", name, body, size)


def _from_table(where: str, name: str, body: Any, size: str) -> Contestant:
    if not isinstance(body, dict) or "relative" not in body:
        raise SpecError(f'{where}: expected a table with relative = "…"{suggest("", registry.relatives())}')
    numbers = dict(body)
    relative, size = numbers.pop("relative"), numbers.pop("size", size)
    if relative not in registry.relatives():
        raise SpecError(f"{where}.relative: unknown relative {relative!r}{suggest(relative, registry.relatives())}")
    return Contestant(name, relative, size, overrides=numbers)
