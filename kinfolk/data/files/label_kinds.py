"""Kinds of labels: how the label of an example is read, stored as text and turned into a training target.

A kind registers itself by being defined, so a plugin with a task may bring one:

    class Shares(LabelKind, kind="shares"):
        def text(self, value, between): ...         the value of a column as text, or RowError
        def names(self, text): ...                  the classes that a label names
        def value(self, text, numbers): ...         what a batch holds: a number, or an array
"""

import abc
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from kinfolk.core.errors import DataError, suggest
from kinfolk.core.plugins import Registry
from kinfolk.data.files.lines import RowError

BETWEEN = "|"
"""Separates the names of several classes of one label, where a label is stored as text."""
SEPARATORS = {"bar": "|", "comma": ",", "semicolon": ";", "space": " "}
"""What may separate the names of several classes in a column, by the name of the option."""

LONGEST = 256


class LabelKind(abc.ABC):
    """What the label of an example is. Methods are pure; `Bad` rows are `RowError`."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            cls.kind, _kinds[kind] = kind, cls()

    @abc.abstractmethod
    def text(self, value: Any, between: str) -> str:
        """Return the value of a column as the text that is stored, or raise `RowError`."""

    def names(self, text: str) -> Sequence[str]:
        """Return the classes that a stored label names; none of a label without classes."""
        return ()

    @abc.abstractmethod
    def value(self, text: str, numbers: Mapping[str, int]) -> Any:
        """Return the target of a stored label; `numbers` is the number of each class."""


_kinds: Registry[LabelKind] = Registry()


def label_kind(name: str) -> LabelKind:
    """Return a kind by its name."""
    if name not in _kinds:
        raise DataError(f"labels: unknown choice {name!r}{suggest(name, _kinds)}")
    return _kinds[name]


class OneClass(LabelKind, kind="class"):
    """One class: its number."""

    def text(self, value: Any, between: str) -> str:
        return name_of(value)

    def names(self, text: str) -> Sequence[str]:
        return (text,)

    def value(self, text: str, numbers: Mapping[str, int]) -> int:
        return numbers[text]


class SeveralClasses(LabelKind, kind="classes"):
    """Any number of classes: 1 for each that holds and 0 for the others."""

    def text(self, value: Any, between: str) -> str:
        """Return the names of a list, or of a text with separators."""
        texts = (
            value
            if isinstance(value, list | tuple)
            else ()
            if value in (None, "")
            else str(value).split(SEPARATORS[between])
        )
        # spaces around a comma are no part of a name, and several of them are one gap
        names = sorted({name_of(name) for name in texts if between == "bar" or str(name).strip()})
        if any(BETWEEN in name for name in names):
            raise RowError("label not allowed", f"{BETWEEN!r} separates classes, it cannot be in a name")
        return BETWEEN.join(names)

    def names(self, text: str) -> Sequence[str]:
        return [name for name in text.split(BETWEEN) if name]

    def value(self, text: str, numbers: Mapping[str, int]) -> Any:
        """Return one number for each class."""
        holds = np.zeros(len(numbers), np.float32)
        holds[[numbers[name] for name in self.names(text)]] = 1
        return holds


class Number(LabelKind, kind="number"):
    """A finite number."""

    def text(self, value: Any, between: str) -> str:
        """Return it as Python prints it."""
        text = name_of(value)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise RowError("not a number", f"the label is {text!r}")
        return repr(number)

    def value(self, text: str, numbers: Mapping[str, int]) -> float:
        return float(text)


def name_of(value: Any) -> str:
    """Return a value as the name of a class: text, or a number; or raise `RowError`."""
    if isinstance(value, bool):
        value = str(value).lower()
    elif isinstance(value, float) and value.is_integer():
        # where a value is missing, tables make integers floats
        value = int(value)
    if value is None or not isinstance(value, str | int | float) or not str(value).strip():
        raise RowError("no label", "" if value is None or value == "" else f"found {type(value).__name__}")
    text = str(value).strip()
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise RowError("not valid UTF-8", "in the label") from None
    if size > LONGEST:
        raise RowError("label too long", f"{size} bytes, and {LONGEST} are allowed; is it the right column?")
    return text
