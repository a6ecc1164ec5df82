"""The rungs of a ladder: one relative at several depths and widths."""

import dataclasses
import re

from kinfolk.contests.budget import parse
from kinfolk.core.errors import SpecError
from kinfolk.family.making import numbers_of
from kinfolk.family.registry import entry
from kinfolk.models.model import Model

RUNGS = "1x32,2x48,2x64,3x96,4x128"
TOKENS = "250k,500k,1M"
_RUNG = re.compile(r"(\d+)x(\d+)(?:x(\d+))?")


@dataclasses.dataclass(frozen=True)
class Rung:
    """Number of layers, width and number of heads."""

    n_layers: int
    d_model: int
    n_heads: int

    @property
    def name(self) -> str:
        """What it is called: layers x width."""
        return f"{self.n_layers}x{self.d_model}"

    def numbers(self, relative: str) -> dict[str, int]:
        """Return the numbers of a relative at this rung, as far as it takes them."""
        wanted = {
            "n_layers": self.n_layers,
            "d_model": self.d_model,
            "n_heads": self.n_heads,
            "d_ff": 4 * self.d_model,
        }
        known = numbers_of(entry(relative).function)
        if "d_model" not in known:
            raise SpecError(f"{relative} has no width that could be set, so there is no ladder of it")
        return {name: value for name, value in wanted.items() if name in known}


def rungs(text: str) -> list[Rung]:
    """Read "2x64,4x128x8": layers x width, and heads where 16 or 32 channels each are not wanted."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _RUNG.fullmatch(word)
        if match is None:
            raise SpecError(f"rung {word!r}: expected layers x width, such as 2x64 or 2x64x4 with 4 heads")
        layers, width, heads = (int(group or 0) for group in match.groups())
        heads = heads or max(1, width // 32 if width % 32 == 0 else width // 16)
        if layers < 1 or width < 1 or width % heads:
            raise SpecError(f"rung {word!r}: {width} channels cannot be shared by {heads} heads of {layers} layers")
        found.append(Rung(layers, width, heads))
    if len({rung.name for rung in found}) < len(found) or not found:
        raise SpecError(f"rungs {text!r}: expected some, each of them once, such as {RUNGS}")
    return found


def amounts(text: str, what: str = "tokens") -> list[float]:
    """Read "250k,1M": amounts of tokens, or of whatever is counted."""
    try:
        found = [parse(f"{word.strip()}-tokens").amount for word in text.split(",")]
    except SpecError:
        raise SpecError(f"{what} {text!r}: expected amounts, such as {TOKENS}") from None
    if len(set(found)) < len(found):
        raise SpecError(f"{what} {text!r}: each amount once")
    return sorted(found)


def body_params(model: Model) -> int:
    """Return the parameters outside the tables of words, which is what laws count (Kaplan et al. 2020, section 2.1)."""
    from kinfolk.models.cost import cost

    dims = model.dims
    head = model.head.cost(dataclasses.replace(dims, d_table=model.embedding.d_table(dims)))
    return cost(model, 1).params - model.embedding.cost(dims).params - head.params
