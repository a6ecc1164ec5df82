"""Absolute paths in names of data, so that a run can be resumed from another folder than it was begun in."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinfolk.data.files.names import split_path
from kinfolk.data.splits.several import PREFIX as SEVERAL
from kinfolk.data.splits.several import name_of, names_in

_VALID = re.compile(r"(?<=[:,]valid=)[^,:]+")


def located(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of `open_data` that mean the same data wherever they are used."""
    return moved(source, _absolute)


def moved(source: Mapping[str, Any], move: Callable[[str], str]) -> dict[str, Any]:
    """Return arguments of `open_data` with other paths. move: takes a path, or what may be one, and returns another."""
    arguments = {key: value for key, value in source.items() if value is not None}
    arguments["name"] = _moved_name(str(arguments["name"]), move) if arguments.get("name") else ""
    return arguments | {key: move(str(arguments[key])) for key in ("tokenizer", "valid", "cache") if key in arguments}


def _moved_name(name: str, move: Callable[[str], str]) -> str:
    if name.startswith(SEVERAL):
        return name_of([_moved_name(one, move) for one in names_in(name)])
    if Path(name).exists():
        return move(name)
    base, path = split_path(name)
    base = _VALID.sub(lambda match: move(match[0]), base)
    return f"{base}:{move(path)}" if path else base


def _absolute(path: str) -> str:
    """Return the absolute path of what exists; anything else is a name (`byte`, `copy`), or a path that fails later."""
    file = Path(path).expanduser()
    return str(file.resolve()) if file.exists() else path
