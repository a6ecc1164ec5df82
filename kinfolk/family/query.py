"""Filter the family by conditions: `causal,linear,year>=2020,rotary`."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.about import TOPOLOGIES, About

COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
LENGTHS = 1_024, 2_048, 4_096
"""FLOPs per token are compared at these lengths to tell whether a relative is linear in the sequence length."""

SLOWING = 0.75
"""From one length to the next, FLOPs per token grow by less than this share of their last growth, if they are bounded.

The growth doubles for full attention, is 1.4 times the last where L^1.5 pairs are attended to, and half of it where a
window is only cut short by the beginning of the sequence.
"""


def where(family: Mapping[str, About], conditions: str) -> dict[str, About]:
    """Return the relatives that meet all conditions, separated by commas.

    A condition is `causal`, a topology (`encoder`), an input (`tokens`, `image`), `linear` (FLOPs per token do not grow
    with the sequence length), `year>=2020`, `from=gpt2` (descends from it), or a kind of any axis that its spec has
    (`rotary`, `rms-norm`); `!` negates.
    """
    selected = dict(family)
    for text in filter(None, (part.strip() for part in conditions.split(","))):
        holds = _condition(text.removeprefix("!").strip(), family)
        selected = {name: about for name, about in selected.items() if holds(about) != text.startswith("!")}
    return selected


def _condition(text: str, family: Mapping[str, About]) -> Callable[[About], bool]:
    if match := re.fullmatch(r"year\s*(>=|<=|=|>|<)\s*(\d{4})", text):
        compare, year = COMPARISONS[match[1]], int(match[2])
        return lambda about: compare(about.year, year)
    if match := re.fullmatch(r"from\s*=\s*(\S+)", text):
        if match[1] not in family:
            raise SpecError(f"--where {text}: unknown relative {match[1]!r}{suggest(match[1], family)}")
        return lambda about: match[1] in _ancestors(about, family)
    if text == "causal":
        return lambda about: about.causal
    if text in TOPOLOGIES:
        return lambda about: about.topology == text
    inputs = {about.input for about in family.values()}
    if text in inputs:
        return lambda about: about.input == text
    if text == "linear":
        return _linear
    kinds = _kinds()
    every = {kind for owned in kinds.values() for kind in owned}
    if text in every:
        return lambda about: text in kinds.get(about.name, ())
    known = ["causal", "linear", *TOPOLOGIES, *inputs, *every]
    raise SpecError(
        f"--where {text}: unknown condition{suggest(text, known).partition(' (known')[0]}; use causal, linear, "
        "a topology, an input, year>=2020, from=RELATIVE, or a kind of an axis (kin axes)"
    )


def _ancestors(about: About, family: Mapping[str, About]) -> set[str]:
    names: set[str] = set()
    parent = about.parent
    while parent is not None and parent not in names:
        names.add(parent)
        parent = family[parent].parent if parent in family else None
    return names


def _kinds() -> dict[str, set[str]]:
    """Return the kinds that every relative's spec has, at size tiny."""
    from kinfolk.core.nested import nested
    from kinfolk.family import registry
    from kinfolk.family.making import make

    return {name: {spec.kind for _, spec in nested(make(name)) if spec.kind} for name in registry.entries()}


def _linear(about: About) -> bool:
    from kinfolk.family.making import make, numbers_of
    from kinfolk.family.registry import entry
    from kinfolk.models.cost import cost

    if about.input != "tokens":
        return False
    takes_length = "max_len" in numbers_of(entry(about.name).function)
    # built for each length: what has a size of its own for every length shows it
    lengths: list[dict[str, Any]] = [{"max_len": n} if takes_length else {} for n in LENGTHS]
    models = [make(about.name, **numbers).model for numbers in lengths]
    short, middle, long = (cost(model, n).flops_per_token for model, n in zip(models, LENGTHS, strict=True))
    return long - middle <= max(SLOWING * (middle - short), 1e-6 * long)
