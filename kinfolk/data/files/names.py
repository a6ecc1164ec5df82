"""Settings in names of data: `copy:length=16,symbols=20`; with a path behind them: `text:length=400:my/folder`."""

import re
from collections.abc import Iterable

from kinfolk.core.errors import DataError, suggest


def split_name(name: str, known: Iterable[str]) -> tuple[str, dict[str, int]]:
    """Return the name without its numbers, and the numbers; a setting that is not known is refused."""
    base, _, rest = name.partition(":")
    known, numbers = list(known), {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in known:
            raise DataError(f"{name}: unknown setting {key!r}{suggest(key, known)}")
        if not (value.isascii() and value.isdecimal()):
            raise DataError(f"{name}: {key} must be a whole number, not {value!r}")
        numbers[key] = int(value)
    return base, numbers


def split_path(name: str) -> tuple[str, str]:
    """Return a name with its numbers, and the path behind it, which may be none."""
    base, _, rest = name.partition(":")
    if not rest or re.fullmatch(r"[^:/]*=[^:/]*", rest):
        return name, ""
    match = re.fullmatch(r"((?:[a-z_]+=[^,:/]*,?)+):(.+)", rest)
    return (f"{base}:{match[1]}", match[2]) if match else (base, rest)
