"""Rollouts to learn from and episodes to be evaluated on, made by acting with the current weights.

A rollout depends on the weights, the memory and the environments, which are all in the checkpoint, and on draws that
follow from (seed, number of the rollout); so a run that was killed goes on as if it had not been.
"""

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from kinfolk.contests.acting.actor import Actor, segment
from kinfolk.contests.acting.environment import World
from kinfolk.contests.acting.learner import ActorMemory, Played, PolicyLearner
from kinfolk.contests.acting.players import Players
from kinfolk.core.annotations import Continuation
from kinfolk.core.batch import Batch
from kinfolk.core.errors import TrainingError
from kinfolk.core.rng import derive
from kinfolk.objectives.policy import Policy, Rollout
from kinfolk.ops.gae import advantages
from kinfolk.optim import Training
from kinfolk.train.evaluate import scoring

_ROLLOUT = "rollout."
_NUMBER = "number"
_SAVED = {"continues_B": "continues"}
"""Names in checkpoints that differ from those of the tensors."""


class Rollouts:
    """Numbered batches of which `epochs` in a row are the same rollout: `batch_size` rows of `length` steps."""

    steps_per_epoch = 1

    def __init__(self, world: World, learner: PolicyLearner, training: Training, seed: int) -> None:
        assert isinstance(learner.objective, Policy)
        self.learner, self.training, self.objective, self.seed = learner, training, learner.objective, seed
        self.players = Players(world, training.batch_size, seed)
        self.memory: ActorMemory | None = None
        self.number = -1
        self.rollout: Batch | None = None

    def meet(self, memories: list[Any]) -> None:
        """Be told the memories of the learner: acting begins with what learning will begin with."""
        self.memory = memories[0] if memories else None

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Return the rollout of a step (the first is 0); the next one is acted out with the weights as they are now."""
        number = step // self.objective.epochs
        if number != self.number:
            if number != self.number + 1:
                raise TrainingError(f"rollout {number} cannot be made after rollout {self.number}: they are in order")
            self.rollout, self.number = self._act(number), number
        assert self.rollout is not None
        return self.rollout

    def fresh(self, step: int) -> bool:
        """Tell whether a step is the first on its rollout."""
        return step % self.objective.epochs == 0

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint has to hold."""
        found = self.players.tensors() | {_NUMBER: torch.tensor(self.number)}
        if self.rollout is None:
            return found
        # by the last part of their names: tensors of annotations beside those of the batch
        fields = {name.rpartition(".")[2]: x.contiguous() for name, x in self.rollout.tensors.items()}
        return found | {f"{_ROLLOUT}{_SAVED.get(name, name)}": x for name, x in fields.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Be what `tensors` said."""
        self.players.restore(tensors)
        self.number = int(tensors[_NUMBER])
        fields = {k.removeprefix(_ROLLOUT): x for k, x in tensors.items() if k.startswith(_ROLLOUT)}
        if not fields:
            self.rollout = None
            return
        rollout = Rollout(**{field.name: fields.pop(field.name) for field in dataclasses.fields(Rollout)})
        continuation = Continuation(fields.pop(_SAVED["continues_B"]))
        batch = Batch(index=fields.pop("index"), tokens=fields.pop("tokens"))
        self.rollout = batch.replace(**fields).annotate(continuation, rollout)

    def _act(self, number: int) -> Batch:
        gamma, players = self.objective.gamma, self.players
        draw = torch.Generator().manual_seed(derive(self.seed, "act", number))
        steps: list[tuple[Tensor, ...]] = []
        with scoring(self.learner):
            actor = Actor(self.learner.model, self.training.length, self._memory())
            for _ in range(self.training.length):
                seen, began_B = players.observations, players.began
                said_BV, values_B = actor.look(seen, began_B)
                actions = actor.head.draw_actions(said_BV, draw)
                log_probs_B = actor.head.log_probs(said_BV[:, None], actions[:, None])[:, 0]
                actions, log_probs_B, values_B = actions.cpu(), log_probs_B.float().cpu(), values_B.float().cpu()
                step = players.step(actions)
                rewards_B = step.rewards_B
                if bool(step.cut_B.any()):
                    # an episode that was cut off would have gone on: the rest is what the critic makes of it
                    rest_B = actor.peek(step.final, torch.zeros_like(began_B)).float().cpu()
                    rewards_B = rewards_B + torch.where(step.cut_B, gamma * rest_B, 0.0)
                steps.append((seen, began_B, actions, log_probs_B, values_B, rewards_B, step.ends_B))
            last_B = actor.peek(players.observations, players.began).float().cpu()
        seen, began, actions, log_probs, values, rewards, ends = (torch.stack(x, 1) for x in zip(*steps, strict=True))
        found = advantages(rewards, values, last_B, ends, gamma, self.objective.decay)
        batch = segment(seen, began)
        return Batch(
            index=batch.index + number * len(batch),
            tokens=batch.tokens,
            document=batch.document,
            positions=batch.positions,
            targets=actions,
        ).annotate(
            # every row goes on; that an episode is over is said by its document
            Continuation(torch.ones(len(batch), dtype=torch.bool)),
            Rollout(
                log_probs=log_probs,
                values=values,
                advantages=(found - found.mean()) / (found.std() + 1e-8),
                returns=found + values,
            ),
        )

    def _memory(self) -> Any:
        if self.memory is None:
            return None
        state = copy.deepcopy(self.memory.state)
        state.next_pos = self.memory.next_pos
        return state


class Episodes:
    """Whole episodes, played with the likeliest actions; the same ones at every validation and in every run."""

    def __init__(self, world: World, learner: PolicyLearner, training: Training, limit: int = 2000) -> None:
        self.world, self.learner, self.training, self.limit = world, learner, training, limit
        self.steps_per_epoch = max(1, training.eval_batches)

    def at(self, step: int, rank: int = 0, world: int = 1) -> Played:
        """Play `batch_size` episodes to their ends, or to `limit`."""
        n = self.training.batch_size
        players = Players(self.world, n, step, "valid-episode")
        returns_B, lengths_B, open_B = torch.zeros(n), torch.zeros(n), torch.ones(n, dtype=torch.bool)
        with scoring(self.learner):
            actor = Actor(self.learner.model, self.training.length, self.learner.model.new_memory())
            for _ in range(self.limit):
                said_BV, _ = actor.look(players.observations, players.began)
                # rows that are over play on unheard, so that all stay in step
                done = players.step(actor.head.likeliest(said_BV).cpu())
                returns_B += done.rewards_B * open_B
                lengths_B += open_B
                open_B &= ~done.ends_B
                if not bool(open_B.any()):
                    break
        place = torch.arange(n) + step * n
        return Played(index=place, tokens=place[:, None], returns=returns_B, lengths=lengths_B)
