"""The learner of reinforcement learning: its segment memory stays as it was at the start of a rollout."""

import dataclasses

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.models.model import State, Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Loss, Vocabulary
from kinfolk.objectives.policy import Policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played(Batch):
    """Whole episodes, by what they brought."""

    returns: Tensor  # [B] sum of rewards
    lengths: Tensor  # [B] steps


class ActorMemory:
    """The memory that a rollout began with. Every update on the rollout reads it; after the last one it moves on."""

    def __init__(self, state: State, learner: "PolicyLearner") -> None:
        self.state, self._learner = state, learner
        self.next_pos = state.next_pos

    @property
    def parts(self) -> dict[str, object]:
        """The memories of the layers, by name."""
        return self.state.parts

    def forget(self, rows_B: Tensor) -> None:
        """Reset these rows to the start of the rollout."""
        self.state.next_pos = self.next_pos
        self.state.forget(rows_B)

    def settle(self) -> None:
        """End an update."""
        if self._learner.last_reading:
            self.state.settle()
            self.next_pos = self.state.next_pos


class PolicyLearner(Learner):
    """A learner that reads each rollout `epochs` times."""

    def __init__(self, model: Transformer, objective: Policy) -> None:
        super().__init__(model, objective, Vocabulary(size=model.spec.vocab_size))
        self.epochs, self.last_reading = objective.epochs, True

    def at_step(self, step: int) -> None:
        """Know whether a step is the last on its rollout; the first step is 1."""
        self.last_reading = step % self.epochs == 0

    def new_memory(self) -> ActorMemory | None:  # type: ignore[override]
        state = super().new_memory()
        return None if state is None else ActorMemory(state, self)

    def forward(self, batch: Batch, memory: ActorMemory | None = None) -> Loss:  # type: ignore[override]
        return super().forward(batch, None if memory is None else memory.state)

    def measure(self, batch: Batch, memory: object = None) -> dict[str, tuple[Tensor, Tensor]]:
        """Return what episodes cost (minus what they brought: the headline, of which less is better), and the rest."""
        assert isinstance(batch, Played)
        n = torch.tensor(float(len(batch.returns)))
        total = batch.returns.sum()
        return {"cost": (-total, n), "return": (total, n), "length": (batch.lengths.sum(), n)}
