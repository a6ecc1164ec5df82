"""The errors a user can see. Each message says where, what was found, what is allowed, and the nearest match."""

import difflib
from collections.abc import Iterable


class KinfolkError(Exception):
    """Base of every error that Kinfolk raises on purpose."""


class SpecError(KinfolkError):
    """A description of a model or a run is not valid."""


class FieldError(SpecError):
    """A value that the type of its field does not allow; a caller that knows the path puts it before the field."""

    def __init__(self, field: str, problem: str) -> None:
        self.field, self.problem = field, problem
        super().__init__(f"{field}{'' if problem.startswith('[') else ': '}{problem}")


class ShapeError(KinfolkError):
    """A tensor does not have the shape its name promises."""


class DataError(KinfolkError):
    """An input file, row or prepared folder cannot be used."""


class CheckpointError(KinfolkError):
    """A checkpoint or a run folder is missing, damaged, or does not fit the model."""


class TrainingError(KinfolkError):
    """Training cannot go on: the loss is not finite, the disk is full, the processes disagree."""


class MissingExtraError(KinfolkError):
    """A verb needs an optional part of the installation."""

    def __init__(self, extra: str, why: str) -> None:
        super().__init__(f"{why} needs an extra that is not installed: pip install 'kinfolk[{extra}]'")


LISTED = 60
"""More names than these are not listed whole in an error."""


def brief(value: object, most: int = 60) -> str:
    """Write a value as Python would, in at most `most` characters."""
    try:
        # the whole text of a long value is not needed to show its beginning
        text = repr(value[: most + 1] if isinstance(value, str | bytes) else value)
    except ValueError:
        # Python refuses to write integers of more than some thousand digits
        text = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else type(value).__name__
    return text if len(text) <= most else f"{text[: most - 3]}…"


def suggest(found: object, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'? (known: …)", the ending every refusal of a name shares."""
    names = sorted(map(str, known))
    # comparing takes time that grows with the square of a name's length
    close = difflib.get_close_matches(str(found)[:100], names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    if len(names) > LISTED:
        near = difflib.get_close_matches(str(found)[:100], names, n=8, cutoff=0.3)
        return f"{hint} ({len(names)} are known{', near it: ' if near else ''}{', '.join(near)})"
    return f"{hint} (known: {', '.join(names) or 'nothing'})"
