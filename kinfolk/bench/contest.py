"""What is measured: contests, who takes part in them, and the work of one step. Plain data, so that it can travel."""

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OURS = "kinfolk"
SUBJECTS: tuple[str, ...] = ("attention", "recurrences", "mixers", "train", "generate", "engines")
SUBJECTS += ("decoding", "serve", "memory", "experts", "halting", "startup")
"""Each is a module of this package with `contests(long)` and `prepare(contestant, sizes)`."""


@dataclasses.dataclass(frozen=True)
class BenchContestant:
    """One way to do the work of a contest.

    how: which of the subject's ways it is. settings: what distinguishes it from another that works the same way.
    package, extra: what must be installed, and the extra that brings it. Without a package it is always there.
    rival: the contestant that does the same in another library, if there is one.
    longest: it does not take part at greater lengths, where it would take hours; 0: at any.
    """

    name: str
    how: str = OURS
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    package: str = ""
    extra: str = "bench"
    rival: str = ""
    longest: int = 0

    @property
    def peer(self) -> bool:
        """Whether it is not ours."""
        return self.how != OURS

    @property
    def missing(self) -> str:
        """Say how to install it, if it is not there."""
        if not self.package or importlib.util.find_spec(self.package) is not None:
            return ""
        return f"not installed: pip install 'kinfolk[{self.extra}]'"


@dataclasses.dataclass(frozen=True)
class Contest:
    """Contestants that do the same work. `beside` is the one whose speed and memory are 1.

    size: the name of the bytes that a step returns, where it returns any; number: that of another number.
    """

    subject: str
    title: str
    sizes: Mapping[str, Any]
    contestants: tuple[BenchContestant, ...]
    beside: str
    unit: str = "tokens"
    size: str = ""
    number: str = ""

    def only(self, words: Sequence[str]) -> "Contest":
        """Return the contest with those whose names contain one of the words, their rivals, and the one beside."""
        named = [c for c in self.contestants if any(word in c.name for word in words)]
        wanted = {c.name for c in named} | {c.rival for c in named} | {self.beside}
        return dataclasses.replace(self, contestants=tuple(c for c in self.contestants if c.name in wanted))

    def among(self, peers: str) -> "Contest":
        """Return the contest with "all" peers, with the one alone that ours are held against, or with "none"."""
        if peers == "all":
            return self
        ours = tuple(c for c in self.contestants if not c.peer or (peers == "beside" and c.name == self.beside))
        beside = self.beside if self.beside in {c.name for c in ours} else ours[0].name
        return dataclasses.replace(self, contestants=ours, beside=beside)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one contestant, ready to be done again and again.

    units: how many tokens (or whatever the contest counts) one step does; flops: its operations, 0 if not counted;
    read_bytes: what it must read from memory, 0 if that is not its limit.
    """

    step: Callable[[], Any]
    units: float = 1.0
    flops: float = 0.0
    parameters: int = 0
    steps: int = 5
    warm_up: int = 2
    read_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class BenchTask:
    """What one child process is asked to do."""

    subject: str
    contestant: BenchContestant
    sizes: Mapping[str, Any]
    threads: int
    allocator: str


@dataclasses.dataclass(frozen=True)
class BenchSample:
    """What one child process found.

    seconds: the median of its steps. growth_bytes: its peak while stepping over what it held just before the first
    step; peak_bytes: all it ever held. gemm: operations per second of a matrix product in the same process;
    bandwidth: bytes per second that it reads.
    """

    seconds: float
    units: float
    flops: float
    parameters: int
    growth_bytes: int
    peak_bytes: int
    gemm: float
    value: float | None = None
    read_bytes: float = 0.0
    bandwidth: float = 0.0
