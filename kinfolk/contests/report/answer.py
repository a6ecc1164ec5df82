"""The answer of a comparison: which contestant to use and why, in plain words, and the protocol in five lines."""

import dataclasses
from collections.abc import Sequence

from kinfolk.contests.comparison import Comparison
from kinfolk.contests.inference import BETTER, OPEN, WORSE
from kinfolk.contests.results import ResultRow
from kinfolk.contests.table import interval
from kinfolk.objectives.measures.measure import measure_of
from kinfolk.report.numbers import memory

FASTER = 1.1
"""A contestant is called faster, or smaller, from this ratio on."""


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """A recommendation: the contestant (or none), one sentence, and its reasons."""

    name: str
    sentence: str
    reasons: tuple[str, ...]


def answer(rows: Sequence[ResultRow], against: str = "") -> Recommendation:
    """Recommend one contestant: the best, or of those that cannot be told from it the cheapest to train.

    against: the baseline that all others were tested against; without one it is the best.
    """
    first = next((row for row in rows if row.rank == 1), None)
    if first is None or first.final is None:
        return Recommendation("", "No trial finished; see below why.", ())
    baseline = next((row for row in rows if row.name == against and row.measure == first.measure), None)
    if baseline is not None and first.spread is not None:
        return _beside(baseline, [row for row in rows if row.measure == first.measure and row is not baseline])
    rivals = [row for row in rows if row.measure == first.measure and row.name != first.name]
    alike, title = [row for row in rivals if row.verdict == OPEN], measure_of(first.measure).title
    if not rivals:
        sentence = f"{first.name} has {_score(first)}; no other contestant shares its metric."
        return Recommendation(first.name, sentence, tuple(_costs(first, [])))
    if first.spread is None:
        sentence = f"{first.name} has the {_extreme(first)} {title} ({_score(first)}), but with one seed "
        sentence += "that may be chance: run more seeds before you choose."
        return Recommendation(first.name, sentence, tuple(_costs(first, rivals)))
    if not alike:
        sentence = f"Use {first.name}: it has the {_extreme(first)} {title} ({_score(first)}), and every "
        sentence += "other contestant is worse by more than chance."
        return Recommendation(first.name, sentence, (*_gaps(rivals), *_costs(first, rivals), *_cautions(first)))
    chosen = _cheapest([first, *alike])
    tied = listed([row.name for row in (first, *alike)])
    sentence = f"These seeds cannot tell {tied} apart."
    if chosen is first:
        sentence += (
            f" Take {first.name}: it has the {_extreme(first)} mean ({_score(first)}) and none of them is cheaper."
        )
    else:
        sentence += f" Take {chosen.name}, which is cheaper to train; {first.name} has the {_extreme(first)} mean."
    return Recommendation(
        chosen.name, sentence, (*_gaps(rivals), *_costs(chosen, [first, *rivals]), *_cautions(chosen))
    )


def _beside(baseline: ResultRow, others: Sequence[ResultRow]) -> Recommendation:
    """Recommend the best contestant that is better than a named baseline by more than chance, or the baseline."""
    better = [row for row in others if row.verdict == BETTER]
    reasons = [f"{row.name}: {interval(row)} against {baseline.name}; {row.verdict}." for row in others if row.mark]
    if not better:
        sentence = f"Keep {baseline.name} ({_score(baseline)}): no contestant is better than it by more than chance."
        return Recommendation(baseline.name, sentence, (*reasons, *_cautions(baseline)))
    chosen = better[0]
    sentence = f"Use {chosen.name} ({_score(chosen)}): it is better than the baseline {baseline.name} "
    sentence += f"({_score(baseline)}) by more than chance."
    return Recommendation(chosen.name, sentence, (*reasons, *_costs(chosen, [baseline]), *_cautions(chosen)))


def _cautions(row: ResultRow) -> list[str]:
    """Say what may speak against the recommended contestant."""
    lines = [f"Its learning rate, {row.lr:.3g}, was found by a search on other seeds."] if row.rates and row.lr else []
    if row.rates is not None and row.rates.edge:
        lines.append(f"Its learning rate is the {row.rates.edge} that was tried: a better one may lie beyond.")
    return lines + [f"Note: {flag}." for flag in row.flags]


def protocol(comparison: Comparison) -> list[str]:
    """Describe how the comparison was run, in five lines that can be pasted into a paper."""
    facts, protocol = comparison.facts, comparison.protocol
    matched = facts.get("match") or _MATCHED.get(protocol.match, protocol.match)
    seeds = f"{len(protocol.seeds)} seeds" if protocol.seeds else facts.get("seeds", "seeds not recorded")
    if len(protocol.looks) > 1:
        looks = f", level kept over looks at {listed([str(n) for n in protocol.looks])} seeds"
    else:
        looks = ""
    lines = [
        f"Contestants: {listed([card.name for card in comparison.cards])}; {matched}.",
        f"Data: {facts.get('data', 'not recorded')}; verdict on {protocol.judged_on}.",
        f"Training: {facts.get('budget', 'budget not recorded')}; {_tuning(comparison)}; "
        f"{facts.get('batches', 'the same batches for all contestants under one seed')}.",
        f"Statistics: {seeds}, paired by seed; simultaneous {1 - protocol.level:.0%} intervals for "
        f"differences to {protocol.against or 'the best'} with moderated variances{looks}.",
        f"Machine: {facts.get('machine', 'not recorded')}; {facts.get('versions', 'versions not recorded')}.",
    ]
    # a name may hold a line break
    return [" ".join(line.split()) for line in lines]


def methods(comparison: Comparison) -> str:
    """Return the protocol as a paragraph for a methods section."""
    lines = [line.partition(": ")[2] for line in protocol(comparison)]
    contestants, data, training, statistics, machine = (line.rstrip(".") for line in lines)
    return (
        f"We compared {contestants} with Kinfolk. The data were {data}. Every trial was trained with {training}. "
        f"Differences were judged with {statistics}. All trials ran on {machine}.\n"
    )


_MATCHED = {"none": "sizes as they are", "params": "matched by parameters without embedding and output layer"}


def _tuning(comparison: Comparison) -> str:
    protocol = comparison.protocol
    if protocol.tune == "off":
        return "each recipe's own learning rate"
    trials = sum(curve.spent.trials for curve in comparison.rates.values())
    where = f" on {protocol.chosen_on}" if protocol.chosen_on else ""
    return (
        f"a learning rate for each contestant, searched{where} in {trials} trials with seeds of their own, and judged "
        "again at every other rate that may be its best where it is worse"
    )


def listed(names: Sequence[str]) -> str:
    """Write names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _extreme(row: ResultRow) -> str:
    return "highest" if measure_of(row.measure).higher else "lowest"


def _score(row: ResultRow) -> str:
    spread = f" ± {row.spread:.4f}" if row.spread is not None else ""
    return f"{row.final:.4f}{spread}" if row.final is not None else "no result"


def _cheapest(rows: Sequence[ResultRow]) -> ResultRow:
    """Return the fastest of rows where it is faster than the first by more than noise, otherwise the first."""
    fastest = max(rows, key=lambda row: row.tokens_per_second or 0.0)
    base = rows[0].tokens_per_second or 0.0
    return fastest if base and (fastest.tokens_per_second or 0.0) > FASTER * base else rows[0]


def _gaps(rivals: Sequence[ResultRow]) -> list[str]:
    """Say how far the nearest contestant that is worse is behind, and who cannot be told apart."""
    lines = []
    worse = [row for row in rivals if row.verdict == WORSE and row.difference is not None]
    if worse:
        nearest = min(worse, key=lambda row: row.difference or 0.0)
        lines.append(
            f"The nearest contestant that is worse, {nearest.name}, is behind by {abs(nearest.difference or 0):.4f} "
            f"(interval {abs(nearest.low or 0):.4f} to {abs(nearest.high or 0):.4f})."
        )
    for row in rivals:
        if row.verdict == OPEN and row.low is not None and row.high is not None:
            lines.append(f"{row.name} may be better by {-row.low:.4f} or worse by {row.high:.4f}.")
    return lines


def _costs(chosen: ResultRow, rivals: Sequence[ResultRow]) -> list[str]:
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
