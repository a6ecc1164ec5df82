"""Names with numbers: `copy:length=16,symbols=20`."""

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
