"""Cue recall, an environment that needs a memory: a cue, a corridor, and a junction where the cue is asked for.

The T-maze of Bakker (2002) without the walking: what is seen at the junction does not say where to turn.
"""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from kinfolk.core.errors import SpecError


@dataclasses.dataclass(frozen=True)
class Discrete:
    """A choice among `n`, as Gymnasium names it."""

    n: int
    start: int = 0


class CueRecall:
    """A cue is seen first, then `corridor` steps of distractors, then the junction: reward 1 for the cue's action.

    cues: how many there are, and actions; corridor: steps between cue and junction, where actions do nothing;
    distractors: kinds of thing to see on the way, drawn anew in every episode.
    The return is the share of right choices; without a memory it is 1 / cues.
    """

    NUMBERS: ClassVar[tuple[str, ...]] = ("corridor", "cues", "distractors")
    reward_threshold: ClassVar[float] = 0.95

    def __init__(self, corridor: int = 20, cues: int = 2, distractors: int = 4) -> None:
        for name, value, least in (("corridor", corridor, 0), ("cues", cues, 2), ("distractors", distractors, 1)):
            if value < least:
                raise SpecError(f"cue-recall: {name} must be at least {least}, got {value}")
        self.corridor, self.cues, self.distractors = corridor, cues, distractors
        # cues come first, so that the number of a cue is that of its action; the junction comes last
        self.observation_space = Discrete(cues + distractors + 1)
        self.action_space = Discrete(cues)
        self._random = np.random.default_rng()
        self._seen: list[int] = []
        self._at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Draw a cue and a corridor; without a seed, go on with the last one's."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        cue = int(self._random.integers(self.cues))
        way = self._random.integers(self.cues, self.cues + self.distractors, self.corridor).tolist()
        self._seen, self._at = [cue, *way, self.cues + self.distractors], 0
        return cue, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Go on; at the junction, turn."""
        if not 0 <= action < self.cues:
            raise SpecError(f"cue-recall: there is no action {action}; use 0 to {self.cues - 1}")
        if self._at >= len(self._seen):
            raise SpecError("cue-recall: the episode is over; reset it")
        self._at += 1
        if self._at < len(self._seen):
            return self._seen[self._at], 0.0, False, False, {}
        return self._seen[-1], float(action == self._seen[0]), True, False, {}

    def close(self) -> None:
        """Hold on to nothing."""
