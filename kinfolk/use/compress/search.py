"""Search for steps that reach a goal: alone and combined, all measured; the best continue training."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import SpecError
from kinfolk.models.folder import save_model
from kinfolk.models.model import Transformer
from kinfolk.runs.run import load_model
from kinfolk.use.compress.exchanging import Tell
from kinfolk.use.compress.goal import Goal, is_allowed
from kinfolk.use.compress.measure import Measurement
from kinfolk.use.compress.pipeline import CompressionWorkshop, run_steps
from kinfolk.use.compress.steps import STEPS, CompressionStep

LADDER: dict[str, tuple[Any, ...]] = {
    "layers": (1 / 6, 1 / 3, 1 / 2, 2 / 3),
    "heads": (0.25, 0.5),
    "ff": (0.25, 0.5, 0.75),
    "share": (2,),
    "rank": (0.25, 0.5, 0.75),
    "int8": ("", "weights"),
}
"""How much of each step is tried. Combined steps are taken in this order, with learning before quantization."""
TOGETHER = 3
"""Steps that are combined at most."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """Steps, what became of the model, and where it lies."""

    steps: tuple[CompressionStep, ...]
    measured: Measurement
    place: Path

    def model(self) -> Transformer:
        """Read the model."""
        return load_model(self.place)


@dataclasses.dataclass(frozen=True, eq=False)
class CompressionSearch:
    """Everything that was tried. `chosen` is the best that reaches the goal at the allowed cost, if any does."""

    goal: Goal
    allowed: float
    first: Measurement
    tried: tuple[Tried, ...]
    refused: dict[str, str]

    @property
    def chosen(self) -> Tried | None:
        """The least worse of those that are all that was asked for; of equals, the fastest."""
        able = [one for one in self.tried if self.is_enough(one)]
        return min(able, key=lambda one: (self.cost(one), -one.measured.speed), default=None)

    def is_enough(self, one: Tried) -> bool:
        """Tell whether a try reaches the goal and is not worse than allowed."""
        return self.goal.reached(one.measured, self.first) and is_allowed(self.cost(one), self.allowed)

    def cost(self, one: Tried) -> float:
        """Return by how much a try is worse than the model as it was trained."""
        return one.measured.worse(self.first)

    def front(self) -> list[Tried]:
        """Return the tries that no other beats in quality, speed and size at once, the fastest first."""

        def at(one: Tried) -> tuple[float, float, float]:
            return self.cost(one), -one.measured.speed, one.measured.bytes

        kept = []
        for one in self.tried:
            mine = at(one)
            beaten = any(at(o) != mine and all(a <= b for a, b in zip(at(o), mine, strict=True)) for o in self.tried)
            if not beaten:
                kept.append(one)
        return sorted(kept, key=lambda one: -one.measured.speed)

    def sentence(self) -> str:
        """Say how it ended."""
        if self.chosen is not None:
            return f"{_names(self.chosen)}: {self.figures(self.chosen)}"
        said = [f"none of {len(self.tried)} tries is {self.goal} and at most {100 * self.allowed:g} % worse"]
        good = [one for one in self.tried if is_allowed(self.cost(one), self.allowed)]
        near = max(good, key=lambda one: self.goal.nearness(one.measured, self.first), default=None)
        if near is not None:
            said.append(f"the nearest that is good enough is {_names(near)} ({self.figures(near)})")
        able = min((t for t in self.tried if self.goal.reached(t.measured, self.first)), key=self.cost, default=None)
        if able is not None:
            said.append(f"the best that reaches the goal is {_names(able)} ({self.figures(able)})")
        return "; ".join(said)

    def figures(self, one: Tried) -> str:
        """Say what a try gains and what it costs."""
        smaller = self.first.bytes / one.measured.bytes
        return f"{_fast(one.measured)}, {smaller:.2f} times as small, {100 * self.cost(one):+.1f} % worse"


def search(
    shop: CompressionWorkshop, goal: Goal, allowed: float, recover: int = 0, tries: int = 32
) -> CompressionSearch:
    """Try single steps, then those together that should reach the goal, then let the best of these learn on.

    Speed is counted and not timed, so that the same command takes the same steps on a busy machine.
    tries: models that are made and measured, at most. Half of those that do not learn go to single steps, the cheap
    and sure ones first, and half to combinations; what one of them does not need, the other has.
    """
    if tries < 1:
        raise SpecError(f"--tries: {tries} is less than 1")
    # steps say what they do to those who asked for them; here every try is one line
    tell, shop = shop.tell, dataclasses.replace(shop, tell=lambda line: None)
    first = shop.judge.measure("as trained", shop.first)
    bench = _Bench(shop, tell, goal, first, tries)
    learning = min(max(1, tries // 6), tries - 1) if recover else 0
    room, singles = tries - learning, ((step,) for step in _singles(shop))
    bench.attempt_all(singles, math.ceil(room / 2))
    bench.attempt_all(iter(bench.promising()), room)
    bench.attempt_all(singles, room)
    if recover:
        for one in bench.best(learning):
            at = next((i for i, step in enumerate(one.steps) if step.name == "int8"), len(one.steps))
            bench.attempt((*one.steps[:at], CompressionStep("recover", recover), *one.steps[at:]))
    return CompressionSearch(goal, allowed, first, tuple(bench.tried), bench.refused)


@dataclasses.dataclass(eq=False)
class _Bench:
    shop: CompressionWorkshop
    tell: Tell
    goal: Goal
    first: Measurement
    most: int
    tried: list[Tried] = dataclasses.field(default_factory=list)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)

    def attempt(self, steps: tuple[CompressionStep, ...]) -> None:
        """Take steps and measure what becomes of the model; steps that it does not admit are noted."""
        name = ",".join(map(str, steps))
        try:
            learner, found = run_steps(self.shop, steps)
        except SpecError as error:
            self.refused[name] = str(error)
            return
        place = save_model(learner.model, self.shop.work / f"try-{len(self.tried)}")
        measured = dataclasses.replace(found[-1], step=name)
        self.tried.append(Tried(steps, measured, place))
        size, worse = 100 * measured.bytes / self.first.bytes, 100 * measured.worse(self.first)
        done = f"[{len(self.tried)}/{self.most}]"
        self.tell(f"{done} {name}: {_fast(measured)}, {size:.0f} % of the size, {worse:+.1f} % worse")

    def attempt_all(self, waiting: Iterator[tuple[CompressionStep, ...]], until: int) -> None:
        """Attempt one after the other until there are `until` tries."""
        while len(self.tried) < until and (steps := next(waiting, None)) is not None:
            self.attempt(steps)

    def promising(self) -> list[tuple[CompressionStep, ...]]:
        """Return single steps together that should reach the goal, if factors multiply and losses add, best first."""
        alone = {one.steps[0]: one.measured for one in self.tried if len(one.steps) == 1}
        found = []
        for n in range(2, TOGETHER + 1):
            for steps in itertools.combinations(sorted(alone, key=_rank), n):
                if len({step.name for step in steps}) < n:
                    continue
                guess = _together([alone[step] for step in steps], self.first)
                if math.isfinite(guess.worse(self.first)):
                    found.append((-self.goal.nearness(guess, self.first), guess.worse(self.first), n, steps))
        found.sort(key=lambda row: row[:3])
        return [row[3] for row in found]

    def best(self, n: int) -> list[Tried]:
        """Return the tries that reach the goal and are least worse; if none does, the nearest to it."""

        def key(one: Tried) -> tuple[float, float]:
            return -self.goal.nearness(one.measured, self.first), one.measured.worse(self.first)

        return sorted(self.tried, key=key)[:n]


def _together(parts: Sequence[Measurement], first: Measurement) -> Measurement:
    """Guess what steps do together: factors multiply, and so do losses and shares of right answers."""

    def share(values: Iterable[float]) -> float:
        return math.prod(values)

    (name, before), quality = first.quality, share(one.quality[1] / first.quality[1] for one in parts)
    return dataclasses.replace(
        first,
        bytes=max(1, round(first.bytes * share(one.bytes / first.bytes for one in parts))),
        memory=max(1, round(first.memory * share(one.memory / max(1, first.memory) for one in parts))),
        measures={name: before * quality},
        speed=share(one.speed for one in parts),
    )


def _singles(shop: CompressionWorkshop) -> list[CompressionStep]:
    """Return the single steps to try: int8, which costs next to nothing, then little of each before more of any.

    Shares of layers are those that some number of them is.
    """
    model = shop.first.model.spec
    deepest = max(stack.n_layers for stack in (model.encoder, model.decoder) if stack is not None)
    rungs = [(i, name, amount) for name, amounts in LADDER.items() for i, amount in enumerate(amounts)]
    found = []
    for _, name, amount in sorted(rungs, key=lambda rung: (rung[0], rung[1] != "int8")):
        whole = round(amount * deepest) / deepest if name == "layers" else amount
        if whole != 0 and (name != "share" or deepest > 1) and CompressionStep(name, whole) not in found:
            found.append(CompressionStep(name, whole))
    return [step for step in found if step.name in STEPS and step.amount != 1.0]


def _rank(step: CompressionStep) -> tuple[int, str]:
    return list(LADDER).index(step.name), str(step.amount)


def _fast(measured: Measurement) -> str:
    return f"{measured.speed:.2f} times as fast by count ({measured.timed:.2f} by the clock)"


def _names(one: Tried) -> str:
    return ", ".join(map(str, one.steps))
