"""Runs contests: every contestant in fresh processes, in turn, round after round.

A, B, C, A, B, C: whatever disturbs the machine for a minute disturbs all contestants alike. A ratio is taken within a
round, between neighbours in time, and the median over the rounds is reported.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from kinfolk.bench.child import environment
from kinfolk.bench.contest import BenchContestant, BenchSample, BenchTask, Contest

Start = Callable[[BenchTask], BenchSample]
Samples = dict[str, dict[int, BenchSample]]
"""Of each contestant, by the number of the round."""
now = time.perf_counter
TIMEOUT = 1800.0


class ChildError(Exception):
    """A child process ended without a sample; the text is its last words."""


@dataclasses.dataclass(frozen=True)
class BenchSettings:
    """How contests are run. `peers` is "all", "beside" or "none"."""

    rounds: int = 5
    threads: int = 1
    allocator: str = "default"
    peers: str = "all"


@dataclasses.dataclass(frozen=True)
class BenchRow:
    """What is said of one contestant. Ratios are to the contest's `beside`; `speed` above 1 is faster than it.

    spread: half of the distance between the fastest and the slowest round, as a share of the median.
    rival_speed, rival_memory: the same ratios to the contestant of another library that does the same.
    growth_bytes: peak while stepping, over what was held before; total_bytes: all of the process.
    mfu, read_share: shares of the machine's limits that are reached, of products and of reading memory.
    """

    name: str
    peer: bool
    note: str = ""
    rounds: int = 0
    seconds: float | None = None
    spread: float | None = None
    units_per_second: float | None = None
    speed: float | None = None
    mfu: float | None = None
    growth_bytes: float | None = None
    total_bytes: float | None = None
    memory: float | None = None
    rival: str = ""
    rival_speed: float | None = None
    rival_memory: float | None = None
    parameters: int = 0
    value: float | None = None
    read_share: float | None = None


@dataclasses.dataclass(frozen=True)
class BenchStanding:
    """The result of a contest. `gemm` and `bandwidth` are the best that any of its processes reached."""

    contest: Contest
    settings: BenchSettings
    gemm: float
    rows: tuple[BenchRow, ...]
    bandwidth: float = 0.0

    def row(self, name: str) -> BenchRow:
        """Return what is said of one contestant."""
        return next(row for row in self.rows if row.name == name)


def run(
    contest: Contest, settings: BenchSettings, say: Callable[[str], None], start: Start | None = None
) -> BenchStanding:
    """Run a contest. `start` measures one task in a fresh process; `say` gets lines of progress."""
    start = start or in_child
    contest = contest.among(settings.peers)
    notes = {c.name: c.missing for c in contest.contestants}
    samples: Samples = {c.name: {} for c in contest.contestants}
    took: dict[str, float] = {}
    for turn in range(settings.rounds):
        for i, contestant in enumerate(contest.contestants):
            if notes[contestant.name]:
                continue
            task = BenchTask(contest.subject, contestant, contest.sizes, settings.threads, settings.allocator)
            begun = now()
            try:
                sample = start(task)
            except ChildError as error:
                notes[contestant.name] = f"failed: {error}"
                say(f"round {turn + 1}/{settings.rounds}  {contestant.name:28} {notes[contestant.name]}")
                continue
            samples[contestant.name][turn], took[contestant.name] = sample, now() - begun
            rest = [c.name for c in contest.contestants[i + 1 :]]
            left = sum(took.get(name, 0.0) for name in rest) + (settings.rounds - turn - 1) * sum(took.values())
            # only from the second round on is it known how long everybody takes
            ahead = f"   {left / 60:.0f} min left" if turn and left >= 60 else ""
            say(f"round {turn + 1}/{settings.rounds}  {contestant.name:28} {1e3 * sample.seconds:10.1f} ms{ahead}")
    return summarise(contest, settings, samples, notes)


def in_child(task: BenchTask) -> BenchSample:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "kinfolk.bench.child"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(dataclasses.asdict(task)),
            capture_output=True,
            text=True,
            env=environment(task.threads),
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"no answer after {TIMEOUT:.0f} s") from None
    if done.returncode:
        words = done.stderr.strip().splitlines()
        raise ChildError(words[-1] if words else f"exit code {done.returncode}")
    return BenchSample(**json.loads(done.stdout))


def summarise(contest: Contest, settings: BenchSettings, samples: Samples, notes: dict[str, str]) -> BenchStanding:
    """Turn samples by contestant and round into rows."""
    every = [s for by_round in samples.values() for s in by_round.values()]
    gemm, bandwidth = (max((get(s) for s in every), default=0.0) for get in (lambda s: s.gemm, lambda s: s.bandwidth))
    rows = tuple(_row(c, contest.beside, samples, (gemm, bandwidth), notes[c.name]) for c in contest.contestants)
    return BenchStanding(contest, settings, gemm, rows, bandwidth)


def _row(
    contestant: BenchContestant, beside: str, samples: Samples, limits: tuple[float, float], note: str
) -> BenchRow:
    mine, others, rival = samples[contestant.name], samples[beside], samples.get(contestant.rival, {})
    if not mine:
        return BenchRow(contestant.name, contestant.peer, note, rival=contestant.rival)
    first, times = next(iter(mine.values())), [s.seconds for s in mine.values()]
    seconds, (gemm, bandwidth) = statistics.median(times), limits
    return BenchRow(
        name=contestant.name,
        peer=contestant.peer,
        note=note,
        rounds=len(mine),
        seconds=seconds,
        spread=(max(times) - min(times)) / 2 / seconds,
        units_per_second=first.units / seconds,
        speed=_ratio([(others[n].seconds, s.seconds) for n, s in mine.items() if n in others]),
        mfu=first.flops / seconds / gemm if first.flops and gemm else None,
        growth_bytes=statistics.median(s.growth_bytes for s in mine.values()),
        total_bytes=statistics.median(s.peak_bytes for s in mine.values()),
        memory=_ratio([(s.growth_bytes, others[n].growth_bytes) for n, s in mine.items() if n in others]),
        rival=contestant.rival,
        rival_speed=_ratio([(rival[n].seconds, s.seconds) for n, s in mine.items() if n in rival]),
        rival_memory=_ratio([(s.growth_bytes, rival[n].growth_bytes) for n, s in mine.items() if n in rival]),
        parameters=first.parameters,
        value=list(mine.values())[-1].value,
        read_share=first.read_bytes / seconds / bandwidth if first.read_bytes and bandwidth else None,
    )


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the median over rounds of a / b."""
    ratios = [a / b for a, b in pairs if b]
    return statistics.median(ratios) if ratios else None
