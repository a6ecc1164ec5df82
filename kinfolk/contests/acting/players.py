"""Vectorised environments: rows of them side by side, each with the next episode when one is over."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from kinfolk.contests.acting.environment import World
from kinfolk.core.rng import derive


@dataclasses.dataclass(frozen=True)
class Step:
    """What a step brought: rewards, where episodes ended, and what was last seen where they were only cut off."""

    rewards_B: Tensor
    ends_B: Tensor
    cut_B: Tensor
    final: Tensor


class Players:
    """Environments in rows.

    An episode follows from its row and its number, and how far it is from the actions so far: that is all a checkpoint
    needs to hold of an environment, whatever it is made of. Taken up again, the actions are repeated.
    """

    def __init__(self, world: World, n_rows: int, seed: int, purpose: str = "episode") -> None:
        self.world, self.seed, self.purpose = world, seed, purpose
        self.envs = [world.make() for _ in range(n_rows)]
        self.episodes = [0] * n_rows
        self.actions: list[list[Any]] = [[] for _ in range(n_rows)]
        self.seen = [self._begin(row) for row in range(n_rows)]

    @property
    def observations(self) -> Tensor:
        """What every row sees now."""
        return self.world.encode(self.seen)

    @property
    def began(self) -> Tensor:
        """True where an episode has just begun."""
        return torch.tensor([not actions for actions in self.actions])

    def step(self, actions_B: Tensor) -> Step:
        """Act in every row; where an episode is over the next one begins."""
        rewards, ends, cuts, final = [], [], [], []
        for row, action in enumerate(actions_B.tolist()):
            seen, reward, terminated, truncated, _ = self.envs[row].step(self.world.decode(action))
            self.actions[row].append(action)
            rewards.append(float(reward))
            ends.append(bool(terminated or truncated))
            cuts.append(bool(truncated and not terminated))
            final.append(seen)
            if ends[-1]:
                self.episodes[row] += 1
                self.actions[row] = []
                seen = self._begin(row)
            self.seen[row] = seen
        return Step(torch.tensor(rewards), torch.tensor(ends), torch.tensor(cuts), self.world.encode(final))

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold: the number of each episode, and its actions, row after row."""
        counts = [len(actions) for actions in self.actions]
        every = [action for actions in self.actions for action in actions]
        return {"episodes": torch.tensor(self.episodes), "counts": torch.tensor(counts), "actions": torch.tensor(every)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Begin the same episodes and act as before."""
        self.episodes = tensors["episodes"].tolist()
        every = iter(tensors["actions"].tolist())
        self.actions = [[next(every) for _ in range(count)] for count in tensors["counts"].tolist()]
        for row, actions in enumerate(self.actions):
            self.seen[row] = self._begin(row)
            for action in actions:
                self.seen[row] = self.envs[row].step(self.world.decode(action))[0]

    def _begin(self, row: int) -> object:
        # environments pass seeds on to generators that want 32 bits
        seed = derive(self.seed, self.purpose, row, self.episodes[row]) % 2**32
        return self.envs[row].reset(seed=seed)[0]
