"""Labels inside a text: tags of words, answer spans, and kinds of a plugin's own.

Labels of whole rows are `kinfolk.data.files.label_kinds`; those inside a text need splits of their own. A kind
registers itself by being defined, so a plugin with a task may bring one:

    class Marks(TextLabels, kind="marks", per_token=True):
        def in_file(self, what): ...                     whether a file has such labels, where its name does not say so
        def open(self, name, what, choices, valid): ...  the splits; their `asks` is the kind
"""

import abc
from pathlib import Path
from typing import Any, ClassVar

from kinfolk.core.plugins import Registry
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.asking import DataRequest
from kinfolk.data.splits.split import Data


class TextLabels(abc.ABC):
    """What labels inside a text are.

    per_token: an example has a label for each token (IGNORE where there is none), instead of one array for all.
    """

    kind: ClassVar[str]
    per_token: ClassVar[bool] = False

    def __init_subclass__(cls, kind: str = "", per_token: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            cls.kind, cls.per_token = kind, per_token
            _kinds[kind] = cls()

    def in_file(self, what: DataRequest) -> bool:
        """Tell whether a file has such labels, by its name or its first row."""
        return False

    @abc.abstractmethod
    def open(self, name: str, what: DataRequest, choices: Preparation, valid: Path | None) -> Data:
        """Open a file with such labels; `valid` is the file to validate on, if it has one of its own."""


_kinds: Registry[TextLabels] = Registry()


def text_labels(kind: str) -> TextLabels | None:
    """Return a kind by its name; None for labels of whole rows."""
    return _kinds.get(kind)


def labels_of(what: DataRequest) -> TextLabels | None:
    """Return the labels inside the texts of a file, as its name asks for or as it looks; None for labels of rows."""
    kind = what.settings.get("labels", "")
    return _kinds.get(kind) or next((one for one in _kinds.values() if one.in_file(what)), None)
