"""The family tree read from source text, so that drawing it imports no tensor library.

Every relative states its place in the tree as literal arguments of `@relative(...)`. Parsing those takes
milliseconds where importing the functions below them takes seconds. A test holds that this reading and the
registry of the running program agree.
"""

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.about import About

FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Listed:
    """A relative as found in a file: what it says of itself, and where its function stands."""

    about: About
    file: Path
    line: int
    source: str


def read(files: Iterable[Path] | None = None) -> dict[str, Listed]:
    """Find every relative defined in some Python files (this package's own, unless told), by name."""
    found: dict[str, Listed] = {}
    for file in sorted(FOLDER.glob("*.py")) if files is None else files:
        for listed in _relatives(file):
            name = listed.about.name
            if name in found:
                raise SpecError(f"{file}:{listed.line}: relative {name!r} is already defined in {found[name].file}")
            found[name] = listed
    return found


def scan(files: Iterable[Path] | None = None) -> dict[str, About]:
    """Return what every relative says of itself, by name."""
    return {name: listed.about for name, listed in read(files).items()}


def children(family: dict[str, About]) -> dict[str | None, list[About]]:
    """Group a family by parent, oldest first; the roots stand under None. A parent that is missing is named."""
    below: dict[str | None, list[About]] = {}
    for about in sorted(family.values(), key=lambda a: (a.year, a.name)):
        if about.parent is not None and about.parent not in family:
            raise SpecError(f"{about.name}.parent: unknown relative {about.parent!r}{suggest(about.parent, family)}")
        below.setdefault(about.parent, []).append(about)
    return below


def lineage(name: str, family: dict[str, About]) -> list[About]:
    """Return a relative's ancestors, the root first and itself last."""
    line: list[About] = []
    here: str | None = name
    while here is not None:
        if here not in family:
            raise SpecError(f"unknown relative {here!r}{suggest(here, family)}")
        if family[here] in line:
            raise SpecError(f"{name}: its line of parents comes back to {here!r}")
        line.append(family[here])
        here = family[here].parent
    return line[::-1]


def _relatives(file: Path) -> Iterator[Listed]:
    text = file.read_text(encoding="utf-8")
    # most files of a package hold no relative, and a search is far cheaper than a parse
    if "@" not in text or "relative(" not in text:
        return
    try:
        tree = ast.parse(text, str(file))
    except SyntaxError as error:
        raise SpecError(f"{file}:{error.lineno}: not valid Python: {error.msg}") from None
    for node in tree.body:
        for call in getattr(node, "decorator_list", ()):
            if _is_relative(call):
                lines = text.splitlines()[call.lineno - 1 : node.end_lineno]
                yield Listed(_about(call, file), file, call.lineno, "\n".join(lines))


def _is_relative(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name == "relative"


def _about(call: ast.Call, file: Path) -> About:
    """Read the decorator's arguments, which must be literals."""
    values: dict[str, Any] = {"input": "tokens"}
    pairs = [("name", argument) for argument in call.args[:1]] + [(k.arg or "**", k.value) for k in call.keywords]
    for name, node in pairs:
        try:
            values[name] = ast.literal_eval(node)
        except ValueError:
            raise SpecError(f"{file}:{node.lineno}: {name} of a relative must be written out as a literal") from None
    try:
        return About(**values)
    except TypeError as error:
        raise SpecError(f"{file}:{call.lineno}: @relative: {error}") from None
