"""Tactics by name, as they are written: "plain", "layer-wise=0.9", "lora=8+reinit=2"."""

from typing import NamedTuple

from kinfolk.core.errors import SpecError, suggest


class TacticEntry(NamedTuple):
    """What a tactic does, and its usual number; None: it takes none."""

    says: str
    number: float | None = None


TACTICS: dict[str, TacticEntry] = {
    "plain": TacticEntry("everything moves, with one learning rate"),
    "frozen": TacticEntry("only the head learns: feature extraction"),
    "bitfit": TacticEntry("only the head, biases and gains learn (Ben Zaken et al. 2022)"),
    "layer-wise": TacticEntry("each layer moves this many times as far as the one above (Sun et al. 2019)", 0.95),
    "gradual": TacticEntry("layers thaw from the top, all after this share of the training", 0.5),
    "slanted": TacticEntry("a slanted triangle that rises for this share of the training", 0.1),
    "ulmfit": TacticEntry("layer-wise by 1 / 2.6, slanted and gradual (Howard and Ruder 2018)"),
    "two-stage": TacticEntry(
        "the head alone for this share of the training, then everything (Peters et al. 2019)", 0.3
    ),
    "lora": TacticEntry("maps of attention move by matrices of this rank only (Hu et al. 2022)", 8),
    "adapters": TacticEntry("a layer of this width after each part, and norms, learn (Houlsby et al. 2019)", 32),
    "mixout": TacticEntry("weights fall back to the first ones with this probability (Lee et al. 2020)", 0.7),
    "mix": TacticEntry(
        "the head reads a learned mean of all layers, as features of a frozen body (Peters et al. 2019)"
    ),
    "three": TacticEntry(
        "classes are read from the last, the largest and the mean state together (Howard and Ruder 2018)"
    ),
    "balanced": TacticEntry("rare classes weigh more in the loss, so that all count the same"),
    "reinit": TacticEntry("N layers at the top are initialised again (Zhang et al. 2021)", 1),
    "scratch": TacticEntry("nothing of what was learnt is taken over: the same body, drawn anew, to compare with"),
}

MOVERS = {name: name for name in ("frozen", "bitfit", "two-stage", "lora", "adapters")}
MOVERS |= dict.fromkeys(("layer-wise", "gradual", "ulmfit"), "layers")
"""Tactics that say what moves and how far; only those of one kind go together."""

Parts = tuple[tuple[str, float], ...]


def read(text: str) -> Parts:
    """Take tactics apart; those without a number have their usual one."""
    parts = []
    for word in filter(None, (part.strip() for part in text.split("+"))):
        name, equals, number = word.partition("=")
        if name not in TACTICS:
            raise SpecError(f"tactic {word!r}: unknown {name!r}{suggest(name, TACTICS)}")
        usual = TACTICS[name].number
        if equals and usual is None:
            raise SpecError(f"tactic {word!r}: {name} takes no number")
        try:
            parts.append((name, float(number) if equals else float(usual or 0)))
        except ValueError:
            raise SpecError(f"tactic {word!r}: expected a number, such as {name}={usual:g}") from None
    movers = [name for name, _ in parts if name in MOVERS]
    for name in movers[1:]:
        if MOVERS[name] != MOVERS[movers[0]]:
            raise SpecError(f"tactic {text!r}: {movers[0]} and {name} both say what moves; take one of them")
    if not parts:
        raise SpecError(f"tactic {text!r}: expected one, such as plain (known: {', '.join(TACTICS)})")
    return tuple(parts)


def table() -> str:
    """Return the tactics for help, one on a line."""
    shown = {name if a.number is None else f"{name}={a.number:g}": a.says for name, a in TACTICS.items()}
    width = max(map(len, shown))
    return "\n".join(f"  {name:{width}}  {says}" for name, says in shown.items())
