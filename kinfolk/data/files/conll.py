"""Tagged words: CoNLL files, in columns with a blank line after a sentence, and JSON lines of two lists."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.json_lines import json_rows
from kinfolk.data.files.lines import numbered
from kinfolk.data.files.reader import Bad, Record
from kinfolk.data.files.sources import Bytes
from kinfolk.data.files.text_files import TextReader

ENDINGS = (".conll", ".bio", ".iob", ".iob2", ".bioes", ".conll03")
DOCUMENT = "-DOCSTART-"
LONGEST_TAG = 256

REMARK = re.compile(r"#\s*(id|sent_id|text|newdoc|newpar|global\.columns)\b")


@dataclasses.dataclass(frozen=True)
class Tagged:
    """A sentence: its words, a tag of each (none where they are asked for), and the line of the first word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    line: int

    def line_of(self, word: int) -> int:
        """Return the line of a word, where words have lines of their own."""
        return self.line + word


@dataclasses.dataclass(frozen=True)
class TaggedRow(Tagged):
    """A sentence on one line."""

    def line_of(self, word: int) -> int:
        """Return the line of the sentence."""
        return self.line


class ConllReader(TextReader, kind="conll", suffixes=(*ENDINGS, ".conllu")):
    """Sentences in columns, with a blank line after each. As rows, `tokens` is the list of its words.

    The words are the first column, or the second of a treebank (.conllu). As documents it is running text.
    """

    def records(self, file: Bytes) -> Iterator[Record | Bad]:
        column, words, first = int(".conllu" in self.source.path.lower()), list[str](), 0
        for line in self.text_lines(file):
            if isinstance(line, Bad):
                yield line
            elif not line.strip("\ufeff").strip():
                if words:
                    yield first, {"tokens": words}
                words = []
            elif not (line.startswith(DOCUMENT) or REMARK.match(line)):
                row = line.split("\t") if "\t" in line else line.split()
                # of a treebank, 3-4 spans two words that are written as one, and 5.1 is not written at all
                if column and not row[0].isdecimal():
                    continue
                first = first if words else self.number(self.line)
                words.append(row[min(column, len(row) - 1)])
        if words:
            yield first, {"tokens": words}


def is_conll(path: Path) -> bool:
    """Tell by its name whether a file has words in columns."""
    return path.name.lower().removesuffix(".gz").endswith(ENDINGS)


def read_conll(path: str | Path, word: str = "", tag: str = "") -> list[Tagged]:
    """Read a file of columns. `word` and `tag` are numbers of columns, from 1: by default the first and the last.

    Columns are parted by tabs if the first line has one, else by spaces. Lines of -DOCSTART- and remarks (# id …) are
    passed over. What is wrong is named with its line.
    """
    columns = [_column(path, name, usual) for name, usual in ((word, 0), (tag, -1))]
    sentences = list(_sentences(str(path), *columns))
    if not sentences:
        raise DataError(f"{path}: holds no sentence")
    return sentences


def read_tag_rows(path: str | Path, words: str = "tokens", tags: str = "tags") -> list[TaggedRow]:
    """Read JSON lines with a list of words and a list of as many tags."""
    sentences = [TaggedRow(*_lists(f"{path}:{number}", row, words, tags), number) for number, row in json_rows(path)]
    if not sentences:
        raise DataError(f"{path}: holds no sentence")
    return sentences


def _column(path: str | Path, name: str, usual: int) -> int:
    if not name:
        return usual
    if not (name.isascii() and name.isdecimal() and int(name)):
        raise DataError(f"{path}: columns of words have numbers, from 1, and no names; found {name!r}")
    return int(name) - 1


def _sentences(path: str, word: int, tag: int) -> Iterator[Tagged]:
    """Yield sentences; a blank line ends one."""
    words: list[str] = []
    tags: list[str] = []
    between, width, first = None, 0, 0
    for number, line in numbered(path):
        # a byte-order mark may be in the middle, where files were put one after another
        if not line.strip("\ufeff \t"):
            if words:
                yield Tagged(tuple(words), tuple(tags), first)
            words, tags = [], []
            continue
        if REMARK.match(line) or line.startswith(DOCUMENT):
            continue
        between = ("\t" if "\t" in line else " ") if between is None else between
        row = line.split("\t") if between == "\t" else line.split()
        width = width or len(row)
        if line.startswith("#") and len(row) != width:
            continue
        pair = _pair(f"{path}:{number}", row, width, word, tag)
        first = first if words else number
        words.append(pair[0])
        tags.append(pair[1])
    if words:
        yield Tagged(tuple(words), tuple(tags), first)


def _pair(where: str, row: list[str], width: int, word: int, tag: int) -> tuple[str, str]:
    if len(row) != width:
        raise DataError(f"{where}: {len(row)} columns, but {width} in the first row")
    if width < 2 or max(word, tag) >= width:
        need = max(2, word + 1, tag + 1)
        raise DataError(f"{where}: a word and its tag need {need} columns, with tabs or spaces between; found {width}")
    if not row[word]:
        raise DataError(f"{where}: a tag without a word")
    return row[word], checked_tag(where, row[tag].strip())


def checked_tag(where: str, tag: Any) -> str:
    """Return a tag as text, or refuse it."""
    if isinstance(tag, bool) or not isinstance(tag, str | int) or not str(tag):
        raise DataError(f"{where}: a word without a tag" + ("" if tag in (None, "") else f": found {tag!r}"))
    if len(str(tag).encode()) > LONGEST_TAG:
        raise DataError(f"{where}: a tag of more than {LONGEST_TAG} bytes; is it the right column?")
    return str(tag)


def _lists(where: str, row: dict[str, Any], words: str, tags: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    for key in (words, tags):
        if key not in row:
            raise DataError(f"{where}: no {key!r}{suggest(key, row)}")
        if not isinstance(row[key], list):
            raise DataError(f"{where}: {key!r} is {type(row[key]).__name__}, not a list")
    if not row[words]:
        raise DataError(f"{where}: no words")
    if len(row[words]) != len(row[tags]):
        raise DataError(f"{where}: {len(row[words])} words, but {len(row[tags])} tags")
    for word in row[words]:
        if not isinstance(word, str) or not word:
            raise DataError(f"{where}: {word!r} is no word")
    return tuple(row[words]), tuple(checked_tag(where, tag) for tag in row[tags])
