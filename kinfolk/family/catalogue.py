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
    """A relative as found in a source file: its metadata, and where its function is."""

    about: About
    file: Path
    line: int
    source: str


def read(files: Iterable[Path] | None = None) -> dict[str, Listed]:
    """Find every relative defined in some Python files (this package's own, unless told), by name."""
    found: dict[str, tuple[dict[str, Any], Path, int, str]] = {}
    for file in sorted(FOLDER.glob("*.py")) if files is None else files:
        for values, line, source in _relatives(file):
            name = values["name"]
            if name in found:
                raise SpecError(f"{file}:{line}: relative {name!r} is already defined in {found[name][1]}")
            found[name] = values, file, line, source
    family = {name: values for name, (values, *_) in found.items()}
    if files is not None and any(values["parent"] not in family for values in family.values()):
        family = {name: dataclasses.asdict(about) for name, about in scan().items()} | family
    return {
        name: Listed(_about(values, family, f"{file}:{line}"), file, line, source)
        for name, (values, file, line, source) in found.items()
    }


def scan(files: Iterable[Path] | None = None) -> dict[str, About]:
    """Return what every relative says of itself, by name."""
    return {name: listed.about for name, listed in read(files).items()}


def children(family: dict[str, About]) -> dict[str | None, list[About]]:
    """Group a family by parent, oldest first; roots have the key None. A parent that is missing is named."""
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


def _relatives(file: Path) -> Iterator[tuple[dict[str, Any], int, str]]:
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
                yield _values(call, file), call.lineno, "\n".join(lines)


def _is_relative(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name == "relative"


def _values(call: ast.Call, file: Path) -> dict[str, Any]:
    """Read the decorator's arguments, which must be literals."""
    values: dict[str, Any] = {"name": "", "parent": None, "input": "tokens"}
    pairs = [("name", argument) for argument in call.args[:1]] + [(k.arg or "**", k.value) for k in call.keywords]
    for name, node in pairs:
        try:
            values[name] = ast.literal_eval(node)
        except ValueError:
            raise SpecError(f"{file}:{node.lineno}: {name} of a relative must be written out as a literal") from None
    return values


def _about(values: dict[str, Any], family: dict[str, dict[str, Any]], where: str) -> About:
    """Return what a relative says of itself, or its nearest ancestor of topology and direction."""
    line, elder = [values], family.get(values["parent"])
    while elder is not None and elder not in line:
        line.append(elder)
        elder = family.get(elder["parent"])
    inherited = {key: one[key] for one in reversed(line) for key in ("topology", "causal") if key in one}
    try:
        return About(**inherited | values)
    except TypeError as error:
        raise SpecError(f"{where}: @relative: {error}") from None
