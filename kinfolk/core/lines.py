"""Lines of a text file: only a newline ends one, as in Python's own text files.

`str.splitlines` also ends a line at form feeds and at U+0085, U+2028 and U+2029, which are ordinary characters in
vocabularies, prompts and names.
"""

from pathlib import Path

from kinfolk.core.errors import DataError


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their newlines; the newline at the end of the last one adds none."""
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_lines(file: Path) -> list[str]:
    """Return the lines of a UTF-8 file; `\\r\\n` and `\\r` are newlines too."""
    try:
        return split_lines(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read: {error}") from None
