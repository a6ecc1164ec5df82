"""Options of `kin prepare`: how raw files become prepared data."""

import dataclasses
from typing import Any

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.label_kinds import SEPARATORS, label_kind

TOKENIZERS = ("byte", "char", "word", "bpe", "unigram")
ON_BAD = ("stop", "skip")
_OF_LABELS = ("label_column", "second_column", "labels", "between")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """How raw files become prepared data. The same files and the same choices give the same bytes.

    tokenizer: byte, char, word, bpe, unigram, or the path of a tokenizer.json.
    vocab: how many ids to learn, specials included; None takes the tokenizer's usual number.
    valid: share of documents held out for validation.
    seed: of the split and of the tokenizer's sample.
    on_bad: stop at the first bad row, or skip and count them.
    pairs: rows are (source, target); plain text files come in twos, line by line.
    text_column, source_column, target_column: name of a column or key, or the number of a column counted from 1.
    label_column: rows have a label in this column, and perhaps a second text in `second_column`; "" if not.
    labels: what a label is: one "class", the "classes" that hold (a list, or names in a text), a "number", or
        another kind of `kinfolk.data.files.label_kinds`.
    between: what separates names in a text: a "bar" (|), "comma", "semicolon" or "space".
    max_line: bytes of the longest row; text files have no such limit, their documents are cut anyway.
    sample: bytes of text that a tokenizer learns from.
    """

    tokenizer: str = "byte"
    vocab: int | None = None
    valid: float = 0.05
    seed: int = 0
    on_bad: str = "stop"
    pairs: bool = False
    text_column: str = "text"
    source_column: str = "source"
    target_column: str = "target"
    label_column: str = ""
    second_column: str = ""
    labels: str = "class"
    between: str = "bar"
    max_line: int = 16 << 20
    sample: int = 32 << 20

    def __post_init__(self) -> None:
        if self.on_bad not in ON_BAD:
            raise DataError(f"on_bad: unknown choice {self.on_bad!r}{suggest(self.on_bad, ON_BAD)}")
        label_kind(self.labels)
        if self.between not in SEPARATORS:
            raise DataError(f"between: unknown choice {self.between!r}{suggest(self.between, SEPARATORS)}")
        if self.label_column and self.pairs:
            raise DataError(
                "label_column: pairs of a source and a target have no labels; a second_column may be labelled"
            )
        if not self.label_column and (self.second_column or self.labels != "class"):
            raise DataError("label_column: is missing; without it there are no labels to read")
        if not 0 <= self.valid < 1:
            raise DataError(f"valid: the share held out must be at least 0 and less than 1, not {self.valid}")
        for name, least in (("max_line", 1), ("sample", 1)):
            if getattr(self, name) < least:
                raise DataError(f"{name}: must be at least {least}, not {getattr(self, name)}")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns a row is made of; a label comes last."""
        if self.label_column:
            return (*filter(None, (self.text_column, self.second_column)), self.label_column)
        return (self.source_column, self.target_column) if self.pairs else (self.text_column,)

    def plain(self) -> dict[str, Any]:
        """Return the choices as plain data; what is said of labels only where there are any."""
        plain = dataclasses.asdict(self)
        # data that was prepared before there was this choice is the same data
        left_out = ("between",) if self.label_column and self.between == "bar" else ()
        return {k: v for k, v in plain.items() if k not in (left_out if self.label_column else _OF_LABELS)}
