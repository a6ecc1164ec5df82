"""An attention pattern drawn in text: rows are queries, columns are keys.

Where a pattern reaches further than the drawing is wide, one character is a square of positions, and a shade
says that some of its pairs are allowed.
"""

import dataclasses
from collections.abc import Iterator

import torch

from kinfolk.core.spec import Spec
from kinfolk.ops.patterns.leaves import Pattern, PerHead

ALL, SOME, NONE = "█", "▒", "·"


def picture(pattern: Pattern, side: int = 16) -> list[str]:
    """Draw who may look at whom, `side` characters high."""
    each = max(1, min(64, -(-5 * _reach(pattern) // (2 * side))))
    positions = torch.arange(side * each)
    allowed = pattern.allows(positions[:, None], positions[None, :]).expand(side * each, side * each)
    share = allowed.view(side, each, side, each).float().mean(dim=(1, 3))
    return ["".join(ALL if x == 1 else SOME if x else NONE for x in row) for row in share.tolist()]


def patterns(spec: Spec, path: str = "") -> Iterator[tuple[str, Pattern]]:
    """Yield every pattern of a spec with its path; a pattern that differs by head yields one for each."""
    for field in dataclasses.fields(spec):
        value, here = getattr(spec, field.name), f"{path}.{field.name}".removeprefix(".")
        if isinstance(value, PerHead):
            yield from ((f"{here}[{i}]", inner) for i, inner in enumerate(value.patterns))
        elif isinstance(value, Pattern):
            yield here, value
        elif isinstance(value, Spec):
            yield from patterns(value, here)
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                if isinstance(item, Spec):
                    yield from patterns(item, f"{here}[{i}]")


def _reach(pattern: Spec) -> int:
    """Return the largest distance that a pattern speaks of."""
    values = [getattr(pattern, f.name) for f in dataclasses.fields(pattern) if f.name != "seed"]
    inner = [_reach(value) for value in values if isinstance(value, Spec)]
    return max([*(value for value in values if type(value) is int), *inner], default=0)
