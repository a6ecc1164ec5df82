"""Goal of a compression and the quality it may cost, read from words: "2x faster, 3x smaller", "1% worse"."""

import dataclasses
import math
import re

from kinfolk.core.errors import SpecError
from kinfolk.use.compress.measure import Measurement

WORDS = {"faster": "speed", "smaller": "size", "lighter": "memory"}


@dataclasses.dataclass(frozen=True)
class Goal:
    """Factors to be reached, of the model as it was trained; 1 asks for nothing."""

    speed: float = 1.0
    size: float = 1.0
    memory: float = 1.0

    def factors(self, now: Measurement, first: Measurement) -> dict[str, tuple[float, float]]:
        """Return what is wanted and what was reached, for what is asked for."""
        reached = {"speed": now.speed, "size": first.bytes / now.bytes, "memory": first.memory / max(1, now.memory)}
        return {name: (want, reached[name]) for name, want in dataclasses.asdict(self).items() if want > 1}

    def reached(self, now: Measurement, first: Measurement) -> bool:
        """Tell whether a model is all that was asked for."""
        return all(is_met(want, got) for want, got in self.factors(now, first).values())

    def nearness(self, now: Measurement, first: Measurement) -> float:
        """Return how much of the way a model has come, in logarithms; 1 is all of it."""
        factors = self.factors(now, first).values()
        return min(
            (1.0 if is_met(*way) else math.log(max(way[1], 1e-9)) / math.log(way[0]) for way in factors), default=1
        )

    def __str__(self) -> str:
        named = {which: word for word, which in WORDS.items()}
        told = [f"{want:g}x {named[which]}" for which, want in dataclasses.asdict(self).items() if want > 1]
        return ", ".join(told)


def is_met(want: float, got: float) -> bool:
    """Tell whether a factor is reached, exactly or as tables print it: 1.996 is 2.00."""
    return got >= want or round(got, 2) >= want


def is_allowed(cost: float, allowed: float) -> bool:
    """Tell whether a cost is within what is allowed, exactly or as tables print it: 3.04 % is 3.0 %."""
    return cost <= allowed or round(100 * cost, 1) <= round(100 * allowed, 9)


def parse_goal(text: str) -> Goal:
    """Read "2x faster", also several with commas between them."""
    found: dict[str, float] = {}
    for part in filter(None, re.split(r",|\band\b", text)):
        match = re.fullmatch(r"\s*([\d.]+)\s*(?:x|times)\s+(faster|smaller|lighter)\s*", part)
        factor = _number(match[1]) if match else math.nan
        if match is None or not factor > 1:
            raise SpecError(f"--to {text!r}: expected a factor above 1, such as '2x faster' (or smaller, or lighter)")
        found[WORDS[match[2]]] = factor
    if not found:
        raise SpecError(f"--to {text!r}: expected something to reach, such as '2x faster'")
    return Goal(**found)


def parse_allowed(text: str) -> float:
    """Read "1% worse" as a share."""
    match = re.fullmatch(r"\s*([\d.]+)\s*%\s*(?:worse)?\s*", text)
    share = _number(match[1]) / 100 if match else math.nan
    if not 0 <= share < math.inf:
        raise SpecError(f"--allow {text!r}: expected how much worse it may be, such as '1% worse'")
    return share


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
