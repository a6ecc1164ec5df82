"""Shape suffixes as contracts: `q_BHLK` is a 4-d tensor, and every letter has one size per call.

B batch, L queries, M keys, D model width, H heads, G heads of keys and values, K head width, F feed-forward width,
E experts, V vocabulary, R rank or random features. Lower case letters are tile sizes (n blocks of b positions), and the
digit 1 is an axis of size one that broadcasts (`bias_1HLM`).

The names are checked when `KINFOLK_CHECK_SHAPES=1` is set before the import, as the tests do. Otherwise
`@shaped` hands back the very function it was given, so nothing is paid for it.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from kinfolk.core.errors import ShapeError

P = ParamSpec("P")
T = TypeVar("T")

LEGEND = {
    "B": "batch",
    "L": "queries",
    "M": "keys",
    "D": "model width",
    "H": "heads",
    "G": "heads of keys and values",
    "K": "head width",
    "F": "feed-forward width",
    "E": "experts",
    "V": "vocabulary",
    "R": "rank or random features",
}
"""What each upper-case letter means, everywhere in the package."""

_SUFFIX = re.compile(r"_([A-Z1][A-Za-z1]*)$")


def shaped(out: str | tuple[str, ...] = "") -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check the suffixed arguments of each call, and its result.

    `out` names the axes of a returned tensor, or of the leading tensors of a returned tuple. Arguments that
    are no tensors (an optional mask that is `None`) are passed over.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if os.environ.get("KINFOLK_CHECK_SHAPES") != "1":
            return function
        where = function.__qualname__.rpartition("<locals>.")[2]
        signature = inspect.signature(function)
        axes = {name: match[1] for name in signature.parameters if (match := _SUFFIX.search(name))}
        results = (out,) if isinstance(out, str) else out
        _know(where, [*axes.values(), *results])

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            sizes: dict[str, int] = {}
            values = signature.bind(*args, **kwargs).arguments
            for name, letters in axes.items():
                if isinstance(value := values.get(name), Tensor):
                    _agree(f"{where}: {name}", letters, value, sizes)
            result = function(*args, **kwargs)
            for letters, value in _results(results, result):
                _agree(f"{where}: result", letters, value, sizes)
            return result

        return checked

    return decorate


def _results(axes: tuple[str, ...], result: Any) -> Iterator[tuple[str, Tensor]]:
    """Pair each promised set of axes with the tensor that was returned for it."""
    values = result if isinstance(result, tuple) else (result,)
    for letters, value in zip(axes, values, strict=False):
        if letters and isinstance(value, Tensor):
            yield letters, value


def _know(where: str, contracts: list[str]) -> None:
    """Refuse a letter that the legend does not explain: it would mean something else to each reader."""
    for letter in "".join(contracts):
        if letter.isupper() and letter not in LEGEND:
            raise ShapeError(f"{where}: the axis letter {letter!r} is not in the legend (known: {', '.join(LEGEND)})")


def _agree(name: str, letters: str, value: Tensor, sizes: dict[str, int]) -> None:
    """Compare one tensor with what the letters stood for so far in this call."""
    if value.ndim != len(letters):
        raise ShapeError(f"{name} should have axes {letters}, got shape {tuple(value.shape)}")
    for letter, size in zip(letters, value.shape, strict=True):
        if letter == "1" and size != 1:
            raise ShapeError(f"{name} has an axis of size {size} where 1 is promised")
        if letter != "1" and sizes.setdefault(letter, size) != size:
            raise ShapeError(f"{name} has {letter}={size}, but {letter}={sizes[letter]} elsewhere")
