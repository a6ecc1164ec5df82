"""Names of labelled files and their settings: `labelled:text=review,label=stars:PATH`."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.json_lines import json_rows
from kinfolk.data.preparing.preparation import Preparation

PREFIX = "labelled:"
SETTINGS = {"text": "text_column", "second": "second_column", "label": "label_column", "labels": "labels"}
SETTINGS |= {"between": "between"}
PAIRS, CORPUS = "pairs:", "corpus:"
"""Names of columns without labels: `pairs:source=en,target=de:PATH`, and texts alone, `corpus:text=review:PATH`."""
_NAME = re.compile(r"(?:labelled|tags):((?:[a-z]+=[^,:]*,?)+):")
OTHERS = ("valid", "window", "stride", "source", "target", "unknown", "task")
"""Settings that say nothing about columns."""
UNKNOWN = ("stop", "add")
"""What becomes of a class that the validation part alone has."""


def is_labelled(name: str) -> bool:
    """Tell whether a name asks for the labels of a file."""
    return name.startswith(PREFIX)


def has_labels(name: str) -> bool:
    """Tell whether a name asks for labels of any kind in a file."""
    return name.startswith((PREFIX, "tags:"))


def is_columns(name: str) -> bool:
    """Tell whether a name asks for columns of a file that have no labels."""
    return name.startswith((PAIRS, CORPUS))


def columns_of(name: str, what: "DataRequest", choices: Preparation) -> Preparation:
    """Return how the columns of a file become pairs, or texts."""
    settings = what.settings
    if name.startswith(CORPUS):
        return dataclasses.replace(choices, text_column=settings.get("text", choices.text_column))
    source, target = settings.get("source", choices.source_column), settings.get("target", choices.target_column)
    return dataclasses.replace(choices, pairs=True, source_column=source, target_column=target)


def settings_of(name: str) -> dict[str, str]:
    """Return the settings in a name, whether its file is there or not."""
    match = _NAME.match(name)
    return dict(item.split("=", 1) for item in match[1].split(",") if item) if match else {}


def inherited(name: str, own: str, **usual: Any) -> str:
    """Return a name with the settings of another where it has none of its own; `valid` belongs to each alone.

    usual: settings for where neither says anything.
    """
    if not has_labels(name):
        return name
    own_settings = settings_of(name)
    rest = name[_NAME.match(name).end() :] if own_settings else name.partition(":")[2]  # type: ignore[union-attr]
    others = {key: value for key, value in settings_of(own).items() if key != "valid"}
    merged = {key: str(value) for key, value in usual.items()} | others | own_settings
    text = ",".join(f"{key}={value}" for key, value in merged.items())
    return f"{name.partition(':')[0]}:{text}:{rest}" if text else name


def named(prefix: str, settings: dict[str, str], path: Path) -> str:
    """Return a name that `open_data` reads; settings without a value are left out."""
    stated = ",".join(f"{key}={value}" for key, value in settings.items() if value)
    return f"{prefix}:{stated}:{path}" if stated else f"{prefix}:{path}"


@dataclasses.dataclass(frozen=True)
class DataRequest:
    """What a name asks for: a file, and settings by their short names."""

    path: Path
    settings: dict[str, str]

    @property
    def valid(self) -> str | None:
        """The file of the validation part, if it has one of its own."""
        return self.settings.get("valid")

    @property
    def adds_unknown(self) -> bool:
        """Whether a class that only the validation part has is added to those to learn, instead of refused."""
        text = self.settings.get("unknown", "stop")
        if text not in UNKNOWN:
            raise DataError(f"{self.path}: unknown must be one of {', '.join(UNKNOWN)}, not {text!r}")
        return text == "add"

    @property
    def task(self) -> str:
        """The kind of the task, where the labels alone do not say it."""
        return self.settings.get("task", "")

    @functools.cached_property
    def first_row(self) -> dict[str, Any]:
        """The first row of JSON lines; empty of any other file."""
        name = self.path.name.lower().removesuffix(".gz")
        if not self.path.is_file() or not name.endswith((".jsonl", ".ndjson")):
            return {}
        return next((row for _, row in json_rows(self.path)), {})

    def number(self, name: str, usual: int) -> int:
        """Return an integer setting."""
        text = self.settings.get(name, str(usual))
        if not (text.isascii() and text.isdecimal()):
            raise DataError(f"{self.path}: {name} must be a whole number, not {text!r}")
        return int(text)

    def choices(self, choices: Preparation) -> Preparation:
        """Return how tables are to be prepared."""
        settings: dict[str, Any] = {"label": choices.label_column or "label"} | self.settings
        return dataclasses.replace(choices, **{SETTINGS[key]: v for key, v in settings.items() if key in SETTINGS})


def asked(name: str) -> DataRequest:
    """Read `labelled:PATH`, or with settings, `labelled:text=review,label=stars:PATH`."""
    rest = name.partition(":")[2]
    values: dict[str, str] = {}
    names = (*SETTINGS, *OTHERS)
    if not Path(rest).exists() and ":" in rest:
        settings, _, rest = rest.partition(":")
        for item in filter(None, settings.split(",")):
            key, _, value = item.partition("=")
            if key not in names or not value:
                raise DataError(f"{name}: unknown setting {item!r}{suggest(key, names)}")
            values[key] = value
    if not Path(rest).exists():
        raise DataError(f"{name}: no such file or folder: {rest}")
    return DataRequest(Path(rest), values)
