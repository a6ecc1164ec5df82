"""How time and memory grow with the length, and from which length on a contestant beats attention to everything."""

import math
from collections.abc import Mapping, Sequence

from kinfolk.bench.runner import BenchRow, BenchStanding

Curve = dict[int, tuple[BenchRow, BenchStanding]]


def lines(standings: Sequence[BenchStanding]) -> list[str]:
    """Say for every contestant of contests that differ in length how it grows and where it begins to pay."""
    found: dict[tuple[str, str], dict[str, Curve]] = {}
    for standing in standings:
        sizes = standing.contest.sizes
        if "backward" not in sizes:
            continue
        key = (standing.contest.subject, "forward and backward" if sizes["backward"] else "forward")
        for row in standing.rows:
            if row.seconds is not None:
                found.setdefault(key, {}).setdefault(row.name, {})[sizes["length"]] = row, standing
    said = []
    for (subject, passes), curves in found.items():
        several = {name: curve for name, curve in curves.items() if len(curve) > 1}
        if several:
            said.append(f"{subject}, {passes}: growth from the second-longest to the longest length, and where it pays")
            said += [_line(name, curve) for name, curve in several.items()]
    return said


def _line(name: str, curve: Curve) -> str:
    time = exponent({n: row.seconds for n, (row, _) in curve.items() if row.seconds})
    contest = next(iter(curve.values()))[1].contest
    sizes = {n: row.value if contest.size else row.growth_bytes for n, (row, _) in curve.items()}
    memory = exponent({n: size for n, size in sizes.items() if size})
    how = [f"time ~ L^{time:.2f}"] if time is not None else []
    how += [f"{contest.size or 'memory'} ~ L^{memory:.2f}"] if memory is not None else []
    speeds = {n: row.speed for n, (row, _) in curve.items() if row.speed is not None}
    return f"  {name:38} {', '.join(how):34} {'' if name == contest.beside else crossover(speeds)}".rstrip()


def exponent(values: Mapping[int, float]) -> float | None:
    """Return the power with which values grow between the two longest lengths."""
    if len(values) < 2:
        return None
    short, long = sorted(values)[-2:]
    return math.log(values[long] / values[short]) / math.log(long / short)


def crossover(speeds: Mapping[int, float]) -> str:
    """Say from which length on a contestant is faster for good, by its speed at each length.

    Between the last length at which it is slower and the first at which it is faster, the logarithm of the speed is
    taken as linear in that of the length.
    """
    lengths = sorted(speeds)
    slower = [n for n in lengths if speeds[n] <= 1]
    if not slower:
        return f"faster from {lengths[0]:,} or less on"
    last = slower[-1]
    if last == lengths[-1]:
        return f"not faster up to {last:,}"
    after = lengths[lengths.index(last) + 1]
    low, high = math.log(speeds[last]), math.log(speeds[after])
    found = math.exp(math.log(last) + math.log(after / last) * -low / (high - low))
    return f"faster from about {float(f'{found:.2g}'):,.0f} on"
