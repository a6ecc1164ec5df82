"""The answer of a comparison: which contestant to use and why, in plain words, and the protocol in five lines."""

import dataclasses
from collections.abc import Sequence

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.inference import LEVEL, OPEN, WORSE
from kinfolk.contests.measures import called, higher_is_better
from kinfolk.contests.results import MARKS, Row
from kinfolk.report.numbers import memory

FASTER = 1.1
"""A contestant is called faster, or smaller, from this ratio on."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """A recommendation: the contestant (or none), one sentence, and its reasons."""

    name: str
    sentence: str
    reasons: tuple[str, ...]


def answer(rows: Sequence[Row]) -> Answer:
    """Recommend one contestant: the best, or of those that cannot be told from it the cheapest to train."""
    first = next((row for row in rows if row.rank == 1), None)
    if first is None or first.final is None:
        return Answer("", "No trial finished; see below why.", ())
    rivals = [row for row in rows if row.measure == first.measure and row.name != first.name]
    alike = [row for row in rivals if row.mark == MARKS[OPEN]]
    if not rivals:
        said = f"{first.name} has {_score(first)}; no other contestant shares its metric."
        return Answer(first.name, said, tuple(_costs(first, [])))
    if first.spread is None:
        said = f"{first.name} has the {_extreme(first)} {called(first.measure)} ({_score(first)}), but with one seed "
        said += "that may be chance: run more seeds before you choose."
        return Answer(first.name, said, tuple(_costs(first, rivals)))
    if not alike:
        said = f"Use {first.name}: it has the {_extreme(first)} {called(first.measure)} ({_score(first)}), and every "
        said += "other contestant is worse by more than chance."
        return Answer(first.name, said, (*_gaps(rivals), *_costs(first, rivals)))
    chosen = _cheapest([first, *alike])
    tied = listed([row.name for row in (first, *alike)], "and")
    said = f"These seeds cannot tell {tied} apart."
    if chosen is first:
        said += f" Take {first.name}: it has the {_extreme(first)} mean ({_score(first)}) and none of them is cheaper."
    else:
        said += f" Take {chosen.name}, which is cheaper to train; {first.name} has the {_extreme(first)} mean."
    return Answer(chosen.name, said, (*_gaps(rivals), *_costs(chosen, [first, *rivals])))


def protocol(comparison: Comparison) -> list[str]:
    """Describe how the comparison was run, in five lines that can be pasted into a paper."""
    facts, names = comparison.facts, [card.name for card in comparison.cards]
    lines = [
        f"Contestants: {listed(names, 'and')}; {facts.get('match', 'widths as they are')}.",
        f"Data: {facts['data']}." if "data" in facts else "",
        f"Budget: {facts.get('budget', 'not recorded')}; "
        f"{facts.get('batches', 'the same batches for all contestants with the same seed')}.",
        f"Statistics: {facts.get('seeds', 'seeds not recorded')}, paired (same batches for all contestants under one "
        f"seed); simultaneous {1 - LEVEL:.0%} intervals for differences to the best with moderated variances.",
        f"Machine: {facts.get('machine', 'not recorded')}; {facts.get('versions', 'versions not recorded')}.",
    ]
    return [line for line in lines if line]


def listed(names: Sequence[str], last: str) -> str:
    """Write names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _extreme(row: Row) -> str:
    return "highest" if higher_is_better(row.measure) else "lowest"


def _score(row: Row) -> str:
    spread = f" ± {row.spread:.4f}" if row.spread is not None else ""
    return f"{row.final:.4f}{spread}" if row.final is not None else "no result"


def _cheapest(rows: Sequence[Row]) -> Row:
    """Return the fastest of rows where it is faster than the first by more than noise, otherwise the first."""
    fastest = max(rows, key=lambda row: row.tokens_per_second or 0.0)
    base = rows[0].tokens_per_second or 0.0
    return fastest if base and (fastest.tokens_per_second or 0.0) > FASTER * base else rows[0]


def _gaps(rivals: Sequence[Row]) -> list[str]:
    """Say how far the nearest contestant that is worse is behind, and who cannot be told apart."""
    lines = []
    worse = [row for row in rivals if row.mark == MARKS[WORSE] and row.difference is not None]
    if worse:
        nearest = min(worse, key=lambda row: row.difference or 0.0)
        lines.append(
            f"The nearest contestant that is worse, {nearest.name}, is behind by {abs(nearest.difference or 0):.4f} "
            f"(interval {abs(nearest.low or 0):.4f} to {abs(nearest.high or 0):.4f})."
        )
    for row in rivals:
        if row.mark == MARKS[OPEN] and row.low is not None and row.high is not None:
            lines.append(f"{row.name} may be better by {-row.low:.4f} or worse by {row.high:.4f}.")
    return lines


def _costs(chosen: Row, rivals: Sequence[Row]) -> list[str]:
    """Say how the recommended contestant compares in speed and memory with the others."""
    lines = []
    speeds = {row.name: row.tokens_per_second for row in rivals if row.tokens_per_second and row.name != chosen.name}
    if speeds and chosen.tokens_per_second:
        fastest = max(speeds, key=lambda name: speeds[name])
        ratio = chosen.tokens_per_second / speeds[fastest]
        if ratio >= FASTER:
            lines.append(f"It trains faster than every other: {ratio:.1f} times as fast as {fastest}.")
        elif ratio <= 1 / FASTER:
            lines.append(f"{fastest} trains {1 / ratio:.1f} times as fast.")
    if chosen.peak_bytes:
        smaller = [row for row in rivals if row.peak_bytes and row.peak_bytes * FASTER < chosen.peak_bytes]
        least = min(smaller, key=lambda row: row.peak_bytes or 0, default=None)
        used = f"Training it took {memory(chosen.peak_bytes)}"
        lines.append(f"{used}; {least.name} {memory(least.peak_bytes)}." if least else f"{used}.")
    if chosen.failed:
        lines.append(f"{chosen.failed} of its {chosen.failed + chosen.seeds} trials failed.")
    return lines
