"""From rows to what a model is asked: texts, words, questions."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from kinfolk.core.errors import DataError, suggest
from kinfolk.use.predict.rows import Row

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class Columns:
    """The names of the columns that are read: one text or two, words, a question and its context, a picture's file."""

    text: str = "text"
    second: str = ""
    tokens: str = "tokens"
    question: str = "question"
    context: str = "context"
    file: str = "file"


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of a sentence; where they were found in a text, also from which character to which."""

    words: tuple[str, ...]
    places: tuple[tuple[int, int], ...] | None = None


def text_of(row: Row, column: str, *, empty: bool = False) -> str:
    """Return a text of a row, or refuse it; `empty`: one without any characters is a text too."""
    if column not in row.values:
        raise row.refuse(f"no {column!r}{suggest(column, row.values)}")
    value = row.values[column]
    if not isinstance(value, str):
        raise row.refuse(f"{column!r} is {'null' if value is None else type(value).__name__}, not text")
    if not empty and not value.strip():
        raise row.refuse("empty text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise row.refuse("not valid UTF-8") from None
    return value


def texts_of(row: Row, columns: Columns, n_texts: int) -> tuple[str, ...]:
    """Return the one or two texts of a row."""
    if n_texts > 1 and not columns.second:
        raise DataError("the run judges two texts at once; name the column of the second one (--second-column)")
    names = (columns.text, columns.second) if n_texts > 1 else (columns.text,)
    return tuple(text_of(row, name) for name in names)


def words_of(row: Row, columns: Columns) -> Words:
    """Return the words of a row: a list of them, or those found in its text."""
    given = row.values.get(columns.tokens)
    if given is None:
        return split_words(text_of(row, columns.text))
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise row.refuse(f"{columns.tokens!r} is {type(given).__name__}, not a list of words")
    for word in given:
        if not isinstance(word, str) or not word:
            raise row.refuse(f"{word!r} is no word")
    if not given:
        raise row.refuse("no words")
    return Words(tuple(given))


def split_words(text: str) -> Words:
    """Cut a text into words and marks of punctuation."""
    found = list(_WORD.finditer(text))
    return Words(tuple(m.group() for m in found), tuple(m.span() for m in found))


def identity(row: Row) -> dict[str, Any]:
    """Return what names a row in the output: its line, and its id if it has one."""
    found = row.values.get("id")
    return {"line": row.line} | ({} if found is None else {"id": found})
