"""Field types of specs: bounded numbers (`Annotated`), choices (`Literal`), and the one check of a value against them.

    dropout: Rate = 0.0                                        0 <= dropout < 1
    activation: Literal["relu", "gelu"] = "relu"               mypy and `Spec` both refuse any other word
    lr: Annotated[float, Bounds(0, 10, open_low=True)]         bounds of its own

Floats are always finite, and integers fit into 32 bits, so that arithmetic on sizes cannot overflow an index.
"""

import dataclasses
import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from kinfolk.core.errors import brief, suggest

LARGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An interval of allowed numbers; `open_low` and `open_high` leave its end points out."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        low = f"{'above' if self.open_low else 'at least'} {self.low:g}" if self.low > -math.inf else ""
        high = f"{'below' if self.open_high else 'at most'} {self.high:g}" if self.high < math.inf else ""
        return " and ".join(text for text in (low, high) if text) or "any finite number"


PositiveInt = Annotated[int, Bounds(1)]
NonNegativeInt = Annotated[int, Bounds(0)]
PositiveFloat = Annotated[float, Bounds(0, open_low=True)]
NonNegativeFloat = Annotated[float, Bounds(0)]
FiniteFloat = Annotated[float, Bounds()]
# of something that may be nothing or all of it; `Rate` is never all, `Fraction` never nothing, `Inside` neither
Probability = Annotated[float, Bounds(0, 1)]
Rate = Annotated[float, Bounds(0, 1, open_high=True)]
Fraction = Annotated[float, Bounds(0, 1, open_low=True)]
Inside = Annotated[float, Bounds(0, 1, open_low=True, open_high=True)]


def problem(value: Any, hint: Any) -> str:
    """Return what is wrong with a value of a declared type, with what is allowed; "" where nothing is."""
    origin = get_origin(hint)
    if origin is Annotated:
        base, *notes = get_args(hint)
        bounds = next(note for note in notes if isinstance(note, Bounds))
        # an upper bound of its own may be above 32 bits, as that of a seed
        wide = base is int and bounds.high > LARGEST and bounds.high < math.inf and type(value) is int
        wrong = "" if wide else problem(value, base)
        return wrong or ("" if value in bounds else f"{brief(value)} is not allowed; {bounds}")
    if origin is Literal:
        allowed = get_args(hint)
        is_choice = isinstance(value, str) and value in allowed
        return "" if is_choice else f"unknown {brief(value)}{suggest(value if isinstance(value, str) else '', allowed)}"
    if origin in (Union, types.UnionType):
        faults = [problem(value, option) for option in get_args(hint)]
        return "" if "" in faults else faults[0]
    if origin is tuple:
        return _tuple_problem(value, get_args(hint))
    return _plain_problem(value, hint)


def _tuple_problem(value: Any, items: tuple[Any, ...]) -> str:
    if not isinstance(value, tuple):
        return f"expected a list, got {brief(value)}"
    hints = [items[0]] * len(value) if items[-1] is Ellipsis else list(items)
    if len(hints) != len(value):
        return f"expected {len(hints)} values, got {len(value)}: {brief(value)}"
    wrong = ((i, problem(item, hint)) for i, (item, hint) in enumerate(zip(value, hints, strict=True)))
    return next((f"[{i}]: {text}" for i, text in wrong if text), "")


def _plain_problem(value: Any, hint: Any) -> str:
    if not isinstance(hint, type):
        return ""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float and number:
        # an int of a thousand digits is neither finite nor infinite: it cannot become a float at all
        finite = abs(value) <= 1e308
        return "" if finite else f"{brief(value)} is not allowed; a finite number"
    if hint is int and number and isinstance(value, int):
        return "" if abs(value) <= LARGEST else f"{brief(value)} is not allowed; at most {LARGEST}"
    if hint in (int, float) or not isinstance(value, hint):
        return f"expected {hint.__name__}, got {brief(value)}"
    return ""
