"""The grammar, listed: every axis, its choices, and the fields of each with defaults and bounds."""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from kinfolk.core.bounds import Bounds
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.nested import nested
from kinfolk.core.plain import to_plain
from kinfolk.core.spec import Spec, is_axis
from kinfolk.core.spec import choices as kinds_of
from kinfolk.family import registry
from kinfolk.family.field_meanings import MEANINGS
from kinfolk.family.making import make


@dataclasses.dataclass(frozen=True)
class FieldOf:
    """A field of a choice: what it may be, what it means, and its default (None where it must be given)."""

    name: str
    allowed: str
    meaning: str
    default: Any = None
    required: bool = False


@dataclasses.dataclass(frozen=True)
class AxisChoice:
    """One value on an axis. `source` is the paper that its description names, `relatives` those that use it."""

    axis: str
    kind: str
    meaning: str
    source: str
    fields: tuple[FieldOf, ...]
    relatives: tuple[str, ...] = ()


def axes() -> dict[str, str]:
    """Return the name of every axis of the grammar, and what it is in one sentence."""
    # what follows the first sentence is for those who write a choice of their own
    return {name: re.split(r"\. (?=[A-Z`])", _sentence(axis))[0].rstrip(".") for name, axis in sorted(_axes().items())}


def rooms() -> dict[str, str]:
    """Return for every axis whether it belongs to the "model", to the "objective" or to "training"."""
    packages = {"objectives": "objective", "optim": "training"}
    return {name: packages.get(axis.__module__.split(".")[1], "model") for name, axis in _axes().items()}


def choices(axis: str, relatives: bool = True) -> list[AxisChoice]:
    """Return every choice on an axis. relatives: find which relatives use each, which builds all their recipes."""
    known = _axes()
    if axis not in known:
        raise SpecError(f"axis: unknown {axis!r}{suggest(axis, known)}")
    users = _users() if relatives else {}
    return [
        AxisChoice(axis, kind, _sentence(cls), _source(cls), tuple(_fields(cls)), tuple(users.get(cls, ())))
        for kind, cls in sorted(kinds_of(known[axis]).items())
    ]


@functools.cache
def load_kinds() -> None:
    """Import every module that defines kinds, whether or not a relative uses them."""
    registry.load()
    for name in ("layers", "ops.patterns", "models", "objectives", "optim"):
        package = importlib.import_module(f"kinfolk.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _axes() -> dict[str, type[Spec]]:
    load_kinds()
    found: dict[str, type[Spec]] = {}

    def visit(cls: type[Spec]) -> None:
        for below in cls.__subclasses__():
            # a base class without a name of its own is no axis: its kinds are listed where it is one
            if is_axis(below) and not below.__name__.startswith("_"):
                found[_name(below)] = below
            visit(below)

    visit(Spec)
    return found


def _name(cls: type[Spec]) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__).lower()


def _sentence(cls: type[Spec]) -> str:
    text = " ".join((inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0]).split()).removeprefix("Axis: ")
    name, _, rest = text.partition(": ")
    # a name that only repeats the kind, which is printed before the sentence
    return rest if re.sub(r"\W", "", name).lower() == (cls.kind or "").replace("-", "") else text


def _source(cls: type[Spec]) -> str:
    """Return the first citation of a description: names and a year."""
    match = re.search(r"\(([^()]*\b(?:19|20)\d\d[^()]*)\)", " ".join((cls.__doc__ or "").split()))
    return match[1] if match else ""


def _fields(cls: type[Spec]) -> Iterator[FieldOf]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = None if field.default is dataclasses.MISSING else field.default
        yield FieldOf(field.name, _allowed(hints[field.name]), _meaning(cls, field.name), _plain(default), required)


def _plain(default: Any) -> Any:
    """Return a default as a reader would write it: the name of a kind, plain data, or a list of these."""
    if isinstance(default, tuple):
        return [_plain(one) for one in default]
    return default.kind or to_plain(default) if isinstance(default, Spec) else default


def _meaning(cls: type[Spec], field: str) -> str:
    """Return what a field means: a sentence of a docstring that begins with it, the table, or one that names it."""
    bases = [base for base in cls.__mro__ if issubclass(base, Spec) and base is not Spec]
    texts = [" ".join(inspect.cleandoc(base.__doc__ or "").split()) for base in bases]
    sentences = [part for text in texts for part in re.split(r"(?<!\bal)(?<=[.)])\s+(?=[A-Z`]|[a-z_]+:\s)", text)]
    first = next((part for part in sentences if re.match(rf"`{field}`|{field}:", part)), "")
    named = next((part for part in sentences if re.search(rf"`{field}`|\b{field}:", part)), "")
    return MEANINGS.get(f"{cls.kind}.{field}") or first or MEANINGS.get(field) or named


def _allowed(hint: Any) -> str:
    """Write a declared type for people: choices, bounds, or the name of an axis."""
    origin = get_origin(hint)
    if origin is Literal:
        return " | ".join(map(str, get_args(hint)))
    if origin is Annotated:
        base, *notes = get_args(hint)
        bounds = next((note for note in notes if isinstance(note, Bounds)), None)
        return f"{_allowed(base)}, {bounds}" if bounds is not None else _allowed(base)
    if origin in (Union, types.UnionType):
        return " or ".join(_allowed(option) for option in get_args(hint))
    if origin is tuple:
        inside = get_args(hint)
        return f"list of {_allowed(inside[0])}" if inside[-1] is Ellipsis else f"{len(inside)} × {_allowed(inside[0])}"
    if hint is type(None):
        return "none"
    if isinstance(hint, type) and issubclass(hint, Spec):
        return _name(hint)
    return getattr(hint, "__name__", str(hint))


def _users() -> dict[type[Spec], list[str]]:
    """Return which relatives have a value of each kind, at size tiny."""
    found: dict[type[Spec], list[str]] = {}
    for name, entry in registry.entries().items():
        for cls in {type(spec) for _, spec in nested(make(name, size="tiny"))}:
            found.setdefault(cls, []).append(entry.about.name)
    return found
