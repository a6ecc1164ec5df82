"""A chooser: limits on quality, speed, memory and context that leave some contestants; a script applies them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from kinfolk.contests.results import ResultRow
from kinfolk.objectives.measures.measure import measure_of
from kinfolk.report.html import Html, embed, join, tag
from kinfolk.report.numbers import amount, memory


@dataclasses.dataclass(frozen=True)
class Criterion:
    """A figure that a reader may limit. most: the limit is an upper one; values: by contestant; words: how written."""

    name: str
    most: bool
    values: Mapping[str, float]
    words: Mapping[str, str]


def criteria(rows: Sequence[ResultRow]) -> list[Criterion]:
    """Return the figures of these rows in which contestants differ."""
    first = next((row.measure for row in rows if row.rank == 1), "")
    ranked = [row for row in rows if row.measure == first and row.final is not None]
    higher = measure_of(first).higher
    shown = [
        _criterion(measure_of(first).title, not higher, {row.name: row.final for row in ranked}, "{:.4f}".format),
        _criterion("tokens/s in training", False, {row.name: row.tokens_per_second for row in ranked}, _count),
        _criterion("training memory", True, {row.name: row.peak_bytes for row in ranked}, memory),
        _criterion("parameters", True, {row.name: row.params for row in ranked}, _count),
        _criterion("FLOPs/token", True, {row.name: row.flops_per_token for row in ranked}, _count),
    ]
    return [one for one in (*shown, *_decoding(ranked)) if len(set(one.values.values())) > 1]


def _decoding(rows: Sequence[ResultRow]) -> list[Criterion]:
    """Return latency, and speed and state of decoding at the shortest and the longest context that was measured."""
    found = {row.name: row.battery for row in rows if row.battery is not None}
    contexts = sorted({int(at) for one in found.values() for at in one.decoding})
    latency = {name: one.latency for name, one in found.items()}
    limits = [_criterion("first token", True, latency, lambda seconds: f"{1000 * seconds:.1f} ms")]
    for at in dict.fromkeys(contexts[:1] + contexts[-1:]):
        here = {name: one.decoding.get(str(at), {}) for name, one in found.items()}
        speeds = {name: figures.get("tokens_per_second") for name, figures in here.items()}
        states = {name: figures.get("state_bytes") for name, figures in here.items()}
        limits.append(_criterion(f"tokens/s in decoding at context {at:,}", False, speeds, _count))
        limits.append(_criterion(f"bytes of state at context {at:,}", True, states, _count))
    return limits


def _criterion(name: str, most: bool, values: Mapping[str, float | None], write: Callable[[float], str]) -> Criterion:
    known = {key: float(value) for key, value in values.items() if value}
    return Criterion(name, most, known, {key: write(value) for key, value in known.items()})


def _count(value: float) -> str:
    return amount(value, 3)


def chooser(rows: Sequence[ResultRow]) -> Html:
    """Return the chooser, hidden until its script runs; nothing where there is nothing to choose between."""
    found = criteria(rows)
    ranked = [row.name for row in rows if row.rank is not None and row.measure == rows[0].measure]
    if len(ranked) < 2 or not found:
        return Html("")
    return tag(
        "section",
        tag("h2", "What do you need?"),
        tag("p", "Set limits; contestants that meet all of them stay marked in the table.", class_="dim"),
        tag("div", *(_slider(i, one) for i, one in enumerate(found)), class_="sliders"),
        tag("p", id="remaining", aria_live="polite", class_="verdict"),
        join(embed({"names": ranked, "criteria": [dataclasses.asdict(one) for one in found]}, "criteria")),
        id="chooser",
        hidden=True,
    )


def _slider(i: int, one: Criterion) -> Html:
    steps = len(set(one.values.values()))
    word = "at most" if one.most else "at least"
    return tag(
        "label",
        tag("span", f"{one.name}, {word} ", tag("output", "any", for_=f"limit-{i}")),
        tag("input", type="range", id=f"limit-{i}", min="0", max=str(steps - 1), value=str(steps - 1)),
    )
