"""Specs to plain data and back: nested dicts, lists and scalars, and so TOML and JSON.

cattrs does the work. What is ours: `kind` picks the class on an axis, numbers are not coerced (an int is
an int, "3" is refused), unknown keys are refused, and an error names the dotted path and the nearest match.
"""

import dataclasses
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

import cattrs
import tomli_w
from cattrs.errors import BaseValidationError, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn

from kinfolk.core.bounds import problem
from kinfolk.core.errors import FieldError, SpecError, brief, suggest
from kinfolk.core.spec import Spec, choices, is_axis

S = TypeVar("S", bound=Spec)


def to_plain(spec: Spec) -> dict[str, Any]:
    """Turn a spec into nested dicts, lists and scalars; `from_plain` is its inverse."""
    result: dict[str, Any] = _plain(spec)
    return result


def from_plain(cls: type[S], data: Any, path: str = "spec") -> S:
    """Build a spec from plain data, or raise a `SpecError` that names the path of everything wrong."""
    try:
        return _converter.structure(data, cls)
    except Exception as error:
        problems = list(_problems(error, path))
        if not problems:
            raise
        raise SpecError("\n".join(problems)) from None


def dumps(spec: Spec) -> str:
    """Write a spec as TOML. `None` is written by leaving the key out."""
    return tomli_w.dumps(to_plain(spec))


def loads(cls: type[S], text: str, path: str = "spec") -> S:
    """Read a spec from TOML."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(f"{path}: not valid TOML: {error}") from None
    return from_plain(cls, data, path)


def load(cls: type[S], file: str | Path) -> S:
    """Read a spec from a TOML file."""
    return from_plain(cls, read_toml(file), str(file))


def read_toml(file: str | Path) -> dict[str, Any]:
    """Read a TOML file as plain data."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: cannot be read: {error}") from None
    # tables within a thousand others are no TOML that can be read; a number may have too many digits
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{file}: not valid TOML: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Spec):
        body = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        head = {"kind": value.kind} if value.kind else {}
        return head | {name: item for name, item in body.items() if item is not None}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _structure_spec(data: Any, cls: type[Spec]) -> Spec:
    if isinstance(data, Spec) and isinstance(data, cls):
        return data
    if not isinstance(data, dict):
        raise SpecError(f"expected a table for {cls.__name__}, got {brief(data)}")
    data = dict(data)
    kind = data.pop("kind", None)
    if is_axis(cls):
        kinds = choices(cls)
        if not isinstance(kind, str) or kind not in kinds:
            reason = "kind is missing" if kind is None else f"unknown kind {brief(kind)}"
            raise SpecError(f"{reason}{suggest(kind, kinds)}")
        cls = kinds[kind]
    elif kind not in (None, cls.kind):
        raise SpecError(f"expected kind {cls.kind!r}, got {brief(kind)}")
    built: Spec = _structure_fn(cls)(data, cls)
    return built


def _structure_fn(cls: type[Spec]) -> Any:
    if cls not in _structure_fns:
        _structure_fns[cls] = make_dict_structure_fn(cls, _converter, _cattrs_forbid_extra_keys=True)
    return _structure_fns[cls]


def _structure_tuple(data: Any, hint: Any) -> Any:
    # the text of a string is not a list of its letters
    if not isinstance(data, list | tuple):
        raise SpecError(f"expected a list, got {brief(data)}")
    return _elements(data, hint)


def _checked(data: Any, hint: Any) -> Any:
    """Structure a scalar, whose type may state what is allowed."""
    if fault := problem(data, hint):
        raise SpecError(fault)
    base = hint.__origin__ if get_origin(hint) is Annotated else hint
    return float(data) if base is float else data


def _problems(error: BaseException, path: str) -> Any:
    """Flatten cattrs' tree of errors into one line per problem, each with its dotted path."""
    if isinstance(error, BaseValidationError):
        for child in error.exceptions:
            note = next((n for n in getattr(child, "__notes__", []) if hasattr(n, "name") or hasattr(n, "index")), None)
            where = path
            if note is not None:
                where = f"{path}.{note.name}" if hasattr(note, "name") else f"{path}[{note.index}]"
            yield from _problems(child, where)
    elif isinstance(error, ForbiddenExtraKeysError):
        names = [f.name for f in dataclasses.fields(error.cl)]
        for key in sorted(error.extra_fields):
            yield f"{path}.{_cut(key)}: unknown key{suggest(key, names)}"
    elif isinstance(error, KeyError):
        yield f"{path}: missing (a value is required)"
    elif isinstance(error, RecursionError):
        yield f"{path}: is nested too deeply"
    elif isinstance(error, FieldError):
        yield f"{path}.{error}"
    elif isinstance(error, SpecError | TypeError | ValueError):
        yield f"{path}: {error}"


def _cut(key: object) -> str:
    """Write a key as it is, unless it is longer than any name."""
    return key if isinstance(key, str) and key.isprintable() and len(key) <= 60 else brief(key)


_structure_fns: dict[type[Spec], Any] = {}
_converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
for _type in (int, float, bool, str):
    _converter.register_structure_hook(_type, _checked)
_elements = _converter.get_structure_hook(tuple[int, ...])
_converter.register_structure_hook_func(lambda cls: get_origin(cls) is tuple, _structure_tuple)
_converter.register_structure_hook_func(lambda cls: get_origin(cls) in (Literal, Annotated), _checked)
_converter.register_structure_hook_func(lambda cls: isinstance(cls, type) and issubclass(cls, Spec), _structure_spec)
