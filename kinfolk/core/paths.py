"""Dotted paths on specs: read one value, set it, parse `--set path=value`, and compare two specs.

    model.decoder.blocks[0].parts[0].n_heads        one value
    model.decoder.blocks[*].parts[*].n_heads        every element that has it
    model.decoder.blocks[-1]                        the last one
    model.decoder.blocks[1,3]                       several, by number
    model.decoder.blocks[2:5]                       several, as a slice of Python: 2, 3 and 4

The text of a value is TOML (`3`, `1e-4`, `true`, `[0, 0, 1]`, `{kind = "window", left = 64}`). A bare word is a
string; where a spec is expected it is the name of a kind, and `none` empties what may be empty.
"""

import dataclasses
import difflib
import re
import tomllib
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.plain import from_plain
from kinfolk.core.spec import Spec, choices, field_types

S = TypeVar("S", bound=Spec)


class SeveralPaths(NamedTuple):
    """A step to several elements of a list: their numbers, or a slice."""

    text: str

    def of(self, n: int) -> list[int]:
        """Return which of n elements are meant; a number out of range stays, to be refused by name."""
        if ":" not in self.text:
            return [int(word) for word in self.text.split(",")]
        return list(range(n))[slice(*(int(word) if word else None for word in self.text.split(":")))]


Steps = tuple[str | int | SeveralPaths, ...]

STAR = "*"
_STEP = re.compile(
    r"(?:^|\.)(?P<name>[A-Za-z_]\w*)|\[(?P<index>-?\d+|\*)\]"
    r"|\[(?P<several>-?\d+(?:\s*,\s*-?\d+)+|-?\d*:-?\d*(?::(?:-?[1-9]\d*)?)?)\]"
)


class Difference(NamedTuple):
    """One place where two specs differ. A value is None where one side has nothing."""

    path: str
    a: Any
    b: Any


def get(spec: Spec, path: str) -> Any:
    """Return the value at a path; with `[*]`, a tuple of the values of all elements that have it."""
    steps = _parse(path)
    values = tuple(_walk(spec, place) for place in _expand(spec, steps, ()))
    several = any(step == STAR or isinstance(step, SeveralPaths) for step in steps)
    return values if several else values[0]


def set_path(spec: S, path: str, value: Any) -> S:
    """Return a copy with the value at a path changed. Plain data becomes what the field declares."""
    for steps in list(_expand(spec, _parse(path), ())):
        where, hint = _text(steps), _hint(spec, steps)
        typed: Any = from_plain(hint, _meant(value, hint, where), where)
        try:
            spec = _rebuild(spec, steps, typed)
        except (SpecError, ValueError) as error:
            raise SpecError(f"{where}: {error}") from None
    return spec


def assign(spec: S, assignments: Iterable[str]) -> S:
    """Apply `path=value` texts in the order given."""
    for assignment in assignments:
        path, text = split(assignment)
        spec = set_path(spec, path, Written(text))
    return spec


def split(assignment: str) -> tuple[str, str]:
    """Take `path=value` apart."""
    path, equals, text = assignment.partition("=")
    if not equals or not path.strip() or not text.strip():
        raise SpecError(f"--set {assignment}: expected path=value, for example training.optimiser.lr=3e-4")
    return path.strip(), text.strip()


class Written(str):
    """The text of a value as typed on a command line: TOML, or a bare word."""

    def read(self) -> Any:
        """Return what the text says: a TOML value, or the text itself where it is no TOML."""
        try:
            read = tomllib.loads(f"value = {self}")
        except (ValueError, RecursionError):
            return str(self)
        return read["value"] if len(read) == 1 else str(self)


def diff(a: Spec, b: Spec) -> list[Difference]:
    """List where two specs differ, in the order of their fields; equal changes of neighbours are one entry."""
    return list(_differences("", a, b))


def show(value: Any) -> str:
    """Write a value in the fewest words: a spec is its kind and the fields that are not at their default."""
    if value is None:
        return "none"
    if isinstance(value, Spec):
        fields = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
        fields_text = ", ".join(f"{f.name}={show(item)}" for f, item in fields if item != f.default)
        return (
            f"{value.kind or type(value).__name__}({fields_text})"
            if fields_text
            else value.kind or type(value).__name__
        )
    if isinstance(value, tuple):
        if len(value) > 3 and all(type(x) is int for x in value) and value == tuple(range(value[0], value[-1] + 1)):
            return f"({value[0]} … {value[-1]})"
        runs: list[tuple[Any, int]] = []
        for item in value:
            same = bool(runs) and runs[-1][0] == item
            runs[-1:] = [(item, runs[-1][1] + 1)] if same else [*runs[-1:], (item, 1)]
        return "(" + ", ".join(show(item) if n == 1 else f"{n} × {show(item)}" for item, n in runs) + ")"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parse(path: str) -> Steps:
    """Take a path apart into names, numbers and stars."""
    steps: list[str | int | SeveralPaths] = []
    end = 0
    while end < len(path):
        match = _STEP.match(path, end)
        if match is None or (not steps and match["name"] is None):
            raise SpecError(
                f"{path!r}: not a path at {path[end:]!r} (expected name.name[0].name; several: [*], [1,3], [2:5])"
            )
        index, several = match["index"], match["several"]
        last = SeveralPaths(several) if several else STAR if index == STAR else match["name"] or int(index)
        steps.append(last)
        end = match.end()
    if not steps:
        raise SpecError("a path is empty (expected name.name[0].name)")
    return tuple(steps)


def _text(steps: Steps) -> str:
    words = (
        f"[{s.text}]" if isinstance(s, SeveralPaths) else f"[{s}]" if isinstance(s, int) or s == STAR else f".{s}"
        for s in steps
    )
    return "".join(words).removeprefix(".")


def _expand(value: Any, steps: Steps, done: Steps) -> Iterator[Steps]:
    """Yield the concrete paths below a value. Under a star, elements without the rest of it are passed over."""
    if not steps:
        yield done
    elif steps[0] == STAR:
        places: list[Steps] = []
        refused: list[SpecError] = []
        for i, item in enumerate(_tuple(value, done)):
            try:
                places += _expand(item, steps[1:], (*done, i))
            except SpecError as error:
                refused.append(error)
        if not places:
            raise refused[0] if refused else SpecError(f"{_text(done)}: is empty")
        yield from places
    elif isinstance(steps[0], SeveralPaths):
        numbers = steps[0].of(len(_tuple(value, done)))
        if not numbers:
            raise SpecError(f"{_text((*done, steps[0]))}: is empty, there are {len(value)}")
        for i in numbers:
            yield from _expand(_child(value, i, done), steps[1:], (*done, i))
    else:
        yield from _expand(_child(value, steps[0], done), steps[1:], (*done, steps[0]))


def _child(value: Any, step: str | int | SeveralPaths, done: Steps) -> Any:
    """Return one field or element, or say what is there instead."""
    assert not isinstance(step, SeveralPaths)
    if isinstance(step, int):
        items = _tuple(value, done)
        if not -len(items) <= step < len(items):
            raise SpecError(f"{_text((*done, step))}: out of range, there are {len(items)}")
        return items[step]
    where = _text((*done, step))
    if isinstance(value, tuple):
        raise SpecError(
            f"{where}: {_text(done)} is a list of {len(value)}; say which: [0] … [{len(value) - 1}], or [*]"
        )
    if not isinstance(value, Spec):
        raise SpecError(f"{where}: {_text(done)} is {show(value)}, which has no fields")
    names = [f.name for f in dataclasses.fields(value)]
    if step not in names:
        raise SpecError(f"{where}: {value.kind or type(value).__name__} has no such field{suggest(step, names)}")
    return getattr(value, step)


def _tuple(value: Any, done: Steps) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise SpecError(f"{_text(done)}: is {show(value)}, not a list")
    return value


def _walk(value: Any, steps: Steps) -> Any:
    for i, step in enumerate(steps):
        value = _child(value, step, steps[:i])
    return value


def _hint(spec: Spec, steps: Steps) -> Any:
    """Return the declared type of what is at a concrete path."""
    last = max(i for i, step in enumerate(steps) if isinstance(step, str))
    hint = field_types(type(_walk(spec, steps[:last])))[str(steps[last])]
    for _ in steps[last + 1 :]:
        hint = next(get_args(option)[0] for option in _options(hint) if get_origin(option) is tuple)
    return hint


def _options(hint: Any) -> tuple[Any, ...]:
    """Return the types a hint allows, without their bounds; a choice of words is text."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    bare = (get_args(option)[0] if get_origin(option) is Annotated else option for option in options)
    return tuple(str if get_origin(option) is Literal else option for option in bare)


def _meant(value: Any, hint: Any, where: str) -> Any:
    """Read a bare word by what the field holds: a kind where a spec is expected, `none` where that is allowed."""
    options = _options(hint)
    specs = [option for option in options if isinstance(option, type) and issubclass(option, Spec)]
    read = value.read() if isinstance(value, Written) else value
    if not isinstance(read, str):
        return str(value) if isinstance(value, Written) and str in options and type(read) not in options else read
    kinds = {kind: cls for axis in specs for kind, cls in {**choices(axis), axis.kind: axis}.items() if kind}
    if read in kinds:
        return {"kind": read}
    if read == "none" and type(None) in options:
        return None
    if specs and str not in options:
        raise SpecError(f"{where}: unknown kind {read!r}{suggest(read, kinds)}")
    return read


def _rebuild(value: Any, steps: Steps, new: Any) -> Any:
    """Copy the specs and tuples along a path with one value changed."""
    if not steps:
        return new
    head, rest = steps[0], steps[1:]
    assert not isinstance(head, SeveralPaths)
    if isinstance(head, int):
        items = list(value)
        items[head] = _rebuild(items[head], rest, new)
        return tuple(items)
    return value.replace(**{head: _rebuild(getattr(value, head), rest, new)})


def _differences(path: str, a: Any, b: Any) -> Iterator[Difference]:
    if a == b:
        return
    if isinstance(a, Spec) and type(a) is type(b):
        for f in dataclasses.fields(a):
            yield from _differences(f"{path}.{f.name}".removeprefix("."), getattr(a, f.name), getattr(b, f.name))
    elif _are_specs(a) and _are_specs(b):
        yield from _grouped(path, list(_elements(a, b)), len(a) if len(a) == len(b) else None)
    else:
        yield Difference(path, a, b)


def _are_specs(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(item, Spec) for item in value)


def _elements(a: tuple[Spec, ...], b: tuple[Spec, ...]) -> Iterator[tuple[int, list[Difference]]]:
    """Yield the differences of each element. Unequal lengths are lined up by type, so that what was put in shows."""
    same = [(i, i) for i in range(len(a))]
    pairs, more = _lined_up(a, b) if len(a) != len(b) else (same, [])
    for i, j in pairs:
        if differences := list(_differences("", a[i], b[j])):
            yield i, differences
    yield from more


def _lined_up(
    a: tuple[Spec, ...], b: tuple[Spec, ...]
) -> tuple[list[tuple[int, int]], list[tuple[int, list[Difference]]]]:
    """Return which elements of two tuples answer one another, and those that only one of them has."""
    pairs: list[tuple[int, int]] = []
    more: list[tuple[int, list[Difference]]] = []
    matcher = difflib.SequenceMatcher(None, [type(x) for x in a], [type(x) for x in b], autojunk=False)
    for _, a0, a1, b0, b1 in matcher.get_opcodes():
        both = min(a1 - a0, b1 - b0)
        pairs += zip(range(a0, a0 + both), range(b0, b0 + both), strict=True)
        more += [(i, [Difference("", a[i], None)]) for i in range(a0 + both, a1)]
        more += [(j, [Difference("", None, b[j])]) for j in range(b0 + both, b1)]
    return pairs, more


def _grouped(path: str, changed: list[tuple[int, list[Difference]]], length: int | None) -> Iterator[Difference]:
    """Say the same change of neighbouring elements once: `[*]` if all have it, else `[2:5]`."""
    while changed:
        first, changes = changed[0]
        n = 1
        while n < len(changed) and changed[n] == (first + n, changes):
            n += 1
        changed = changed[n:]
        span = f"[{first}]" if n == 1 else "[*]" if n == length else f"[{first}:{first + n}]"
        for change in changes:
            inner = f"{path}{span}.{change.path}" if change.path[:1] not in ("", "[") else f"{path}{span}{change.path}"
            yield change._replace(path=inner)
