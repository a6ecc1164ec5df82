r"""The same comparison at several sizes: ranks, Kendall's tau between them, laws of compute, and where they cross.

Each contestant's law $L(C) = E + A C^{-\alpha}$ (Hoffmann et al. 2022, section 3.3) goes through its finished losses at
all sizes, C being the operations of a training. Two laws cross where their difference changes its sign; the interval is
that of crossings of paired refits. A crossing is stated only where 95 % of refits have one within a hundred times the
largest training; otherwise the answer is who stays ahead, or that the data cannot say.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.evidence import Crossing, Sizes, Spent
from kinfolk.contests.scaling.law import LEVEL, Law, Measured, fit
from kinfolk.core.errors import DataError
from kinfolk.objectives.measures.measure import measure_of

BEYOND = 100.0
"""A crossing is looked for up to this multiple of the largest training."""

GRID = 400
"""Places at which two laws are compared."""


def gather(found: Mapping[str, Comparison]) -> Sizes:
    """Return what several sizes say together, smallest first; losses of the measure that most contestants share."""
    rows = {size: {row.name: row for row in result.rows} for size, result in found.items()}
    measure = next((row.measure for result in found.values() for row in result.rows if row.rank == 1), "")
    losses = {
        size: {name: row.final for name, row in table.items() if row.measure == measure and row.final is not None}
        for size, table in rows.items()
    }
    ranks = {
        size: {name: rows[size][name].rank or 0 for name in scores if rows[size][name].rank}
        for size, scores in losses.items()
    }
    pairs = itertools.combinations(found, 2)
    names = list(dict.fromkeys(card.name for result in found.values() for card in result.cards))
    laws = {name: _law(name, measure, found) for name in names}
    fitted = {name: law for name, law in laws.items() if isinstance(law, Law)}
    reach = [o.flops for result in found.values() for trials in result.outcomes.values() for o in trials if o.done]
    return Sizes(
        ranks=ranks,
        losses=losses,
        tau={f"{a},{b}": _tau(losses[a], losses[b]) for a, b in pairs},
        laws={name: law.plain() if isinstance(law, Law) else {"says": law} for name, law in laws.items()},
        crossings=tuple(
            crossing(a, fitted.get(a), b, fitted.get(b), (min(reach), max(reach)))
            for a, b in itertools.combinations(names, 2)
            if reach
        ),
    )


def _law(name: str, measure: str, found: Mapping[str, Comparison]) -> Law | str:
    """Return a contestant's law of compute; in words why there is none."""
    if measure_of(measure).higher:
        return f"{measure} is not a loss, so it has no power law"
    points = [
        Measured(1.0, outcome.flops, outcome.scores[measure])
        for result in found.values()
        for outcome in result.outcomes.get(name, ())
        if outcome.done and measure in outcome.scores
    ]
    try:
        return fit(points)
    except DataError:
        sizes = len({point.tokens for point in points})
        return f"three sizes are the fewest for a law, found {sizes}"


def crossing(a: str, first: Law | None, b: str, second: Law | None, reach: tuple[float, float]) -> Crossing:
    """Say where two laws cross, who stays ahead, or that the data cannot say. reach: the least and most compute."""

    def said(words: str, at: Sequence[float] = ()) -> Crossing:
        flops, low, high = at or (None, None, None)
        return Crossing(first=a, second=b, flops=flops, low=low, high=high, says=words)

    if first is None or second is None:
        return said("the data cannot say: a law needs three sizes")
    where = np.geomspace(reach[0], BEYOND * reach[1], GRID)
    gap = first.losses(where) - second.losses(where)
    changes = np.diff(np.sign(gap), axis=1) != 0
    crosses = changes.any(1)
    # the place of the last change: behind it the order stays
    last = changes.shape[1] - 1 - changes[:, ::-1].argmax(1)
    refits, share = crosses[1:], float(crosses[1:].mean())
    if crosses[0] and share >= LEVEL:
        low, high = np.quantile(where[last[1:][refits]], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        at = (float(where[last[0]]), float(low), float(high))
        ahead = a if gap[0, -1] < 0 else b
        return said(f"cross at {at[0]:.2g} operations [{low:.2g}, {high:.2g}]; {ahead} is ahead beyond", at)
    stays = [name for name, sign in ((a, -1), (b, 1)) if (np.sign(gap[1:]) == sign).all(1).mean() >= LEVEL]
    if stays:
        return said(f"{stays[0]} stays ahead up to {BEYOND:g} times the largest training")
    return said(f"the data cannot say: {share:.0%} of refits cross up to {BEYOND:g} times the largest training")


def _tau(first: Mapping[str, float], second: Mapping[str, float]) -> float | None:
    shared = [name for name in first if name in second]
    return kendall([first[name] for name in shared], [second[name] for name in shared])


def kendall(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b of two rankings (Kendall 1945); None where one of them ranks nothing."""
    pairs = list(itertools.combinations(range(len(first)), 2))
    signs = [(np.sign(first[i] - first[j]), np.sign(second[i] - second[j])) for i, j in pairs]
    scale = sum(x != 0 for x, _ in signs) * sum(y != 0 for _, y in signs)
    return float(sum(x * y for x, y in signs) / np.sqrt(scale)) if scale else None


def joined(found: Mapping[str, Comparison], title: str, command: str) -> Comparison:
    """Return the comparison at the largest size, with what all sizes say together."""
    size, largest = list(found.items())[-1]
    facts = dict(largest.facts) | {
        "command": command,
        "sizes": f"{', '.join(found)}; tables and curves are those of {size}, each size has a report of its own",
    }
    costs: dict[str, Spent] = {}
    for result in found.values():
        for part, cost in result.protocol.costs.items():
            costs[part] = costs[part] + cost if part in costs else cost
    return dataclasses.replace(
        largest,
        folder=largest.folder.parent,
        title=title,
        facts=facts,
        protocol=dataclasses.replace(largest.protocol, costs=costs),
        sizes=gather(found),
    )
