"""An equal budget: N seconds, tokens or floating-point operations for every contestant.

A budget becomes a number of steps before a trial starts, because schedules of the learning rate need to know
where the end is. Tokens divide by the tokens of a step, operations go through the cost model, and seconds
go through a measurement of how long a step takes on this machine, beside the same neighbours.
"""

import dataclasses
import math
import re

from kinfolk.core.errors import SpecError
from kinfolk.report.numbers import amount as amount

EXAMPLES = "90s, 10m, 1h30m, 500k-tokens, 2M-tokens, 1e15-flops"

_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_NUMBER = r"\d+(?:\.\d+)?"
_SECONDS = re.compile(rf"(?:({_NUMBER})h)?(?:({_NUMBER})m)?(?:({_NUMBER})s)?")
_AMOUNT = re.compile(rf"({_NUMBER}(?:[eE]\+?\d+)?)([A-Za-z]?)[- ](tokens?|flops?)")


@dataclasses.dataclass(frozen=True)
class Budget:
    """What one trial may use. `unit` is "seconds", "tokens" or "flops" (forward and backward together)."""

    amount: float
    unit: str

    def steps(self, tokens_per_step: float, flops_per_token: float | None, seconds_per_step: float | None) -> int:
        """Return how many steps fit: at least one, so that every contestant has a result."""
        per_step = self.per_step(tokens_per_step, flops_per_token, seconds_per_step)
        # a budget that was made from a number of steps must give that number back
        return max(1, math.floor(self.amount / per_step * (1 + 1e-9)))

    def per_step(self, tokens_per_step: float, flops_per_token: float | None, seconds_per_step: float | None) -> float:
        """Return what one step uses up, in this budget's unit."""
        if self.unit == "tokens":
            return tokens_per_step
        if self.unit == "flops":
            if not flops_per_token:
                raise SpecError(f"budget {self}: the operations of a token are not known")
            return tokens_per_step * flops_per_token
        if not seconds_per_step:
            raise SpecError(f"budget {self}: the seconds of a step are not known")
        return seconds_per_step

    def __str__(self) -> str:
        if self.unit == "seconds":
            return duration(self.amount)
        if self.unit == "flops":
            return f"{self.amount:.4g}-flops".replace("e+", "e")
        return f"{amount(self.amount)}-tokens"


def parse(text: str) -> Budget:
    """Read "10m", "2M-tokens" or "1e15-flops"."""
    text = text.strip()
    if match := _SECONDS.fullmatch(text):
        hours, minutes, seconds = (float(group or 0) for group in match.groups())
        return _positive(Budget(3600 * hours + 60 * minutes + seconds, "seconds"), text)
    if match := _AMOUNT.fullmatch(text.replace("_", "")):
        number, prefix, unit = match.groups()
        # "K" is what many people write for a thousand, and it can mean nothing else
        prefix = "k" if prefix == "K" else prefix
        if prefix not in _PREFIX:
            raise _refuse(text, f"{prefix!r} is not a multiple (known: {', '.join(filter(None, _PREFIX))})")
        return _positive(Budget(float(number) * _PREFIX[prefix], unit.removesuffix("s") + "s"), text)
    if re.fullmatch(rf"{_NUMBER}(?:[eE]\+?\d+)?[A-Za-z]?", text.replace("_", "")):
        raise _refuse(text, "the unit is missing")
    raise _refuse(text, "neither a duration nor an amount with a unit")


def duration(seconds: float) -> str:
    """Write seconds the way `parse` reads them: 5400 is "1h30m"."""
    if seconds < 60:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest}s" if rest else ""]
    return "".join(parts)


def _positive(budget: Budget, text: str) -> Budget:
    if not budget.amount > 0 or math.isinf(budget.amount):
        raise _refuse(text, "it must be more than nothing and finite")
    return budget


def _refuse(text: str, what: str) -> SpecError:
    return SpecError(f"budget {text!r}: {what}; examples: {EXAMPLES}")
