"""Finished losses at an eighth, a quarter, a half and all of the budget, from one training at a constant rate.

A trunk holds the peak rate after its warm-up; at each share of the budget a branch goes on from its checkpoint and
cools down in a straight line over a fifth of its own steps (Hägele et al. 2024, arXiv:2405.18392). Before it cools down
a branch is the trunk, so a branch equals the same schedule trained from the start, bit for bit, at 1.2 budgets for all
four shares instead of 1.9.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.contests.evidence import Branch, mean_of
from kinfolk.contests.outcome import Outcome
from kinfolk.contests.plan import Entrant, Plan
from kinfolk.contests.space import assigned
from kinfolk.contests.trial import TRUNK, Trial
from kinfolk.optim import Training
from kinfolk.optim.schedule import Constant, Cooldown

SHARES = (0.125, 0.25, 0.5, 1.0)
COOLING = 0.2
"""The share of a branch's own steps that it cools down in; it begins with the trunk's."""

UNIT = 40
"""Steps of a budget are cut into this many parts: a branch begins after 4, 8, 16, 32 and ends after 5, 10, 20, 40."""


@dataclasses.dataclass(frozen=True)
class Tree:
    """A trunk and its branches, of one contestant and one seed. `part`: steps of a fortieth of the budget."""

    plan: Plan
    entrant: Entrant
    seed: int
    steps: int
    lr: float | None = None
    others: Mapping[str, float] = dataclasses.field(default_factory=dict)
    held_out: str = ""

    @property
    def part(self) -> int:
        """Steps of a fortieth of the budget; none where the budget is too small for branches."""
        return self.steps // UNIT

    def trunk(self) -> Trial:
        """Return the training at a constant rate, which keeps the checkpoints that branches begin with."""
        training, warmup = self._training()
        save = 4 * self.part
        training = training.replace(
            steps=32 * self.part,
            schedule=Constant(warmup=warmup),
            eval_every=save,
            save_every=save,
            keep_last=8,
        )
        return self._order(training, extra={TRUNK: "keeps its checkpoints"})

    def branch(self, share: float, source: str) -> Trial:
        """Return the branch of a share of the budget; `source` is the folder of the trunk."""
        training, warmup = self._training()
        end = round(UNIT * share) * self.part
        begin = end - round(COOLING * end)
        training = training.replace(
            steps=end,
            # progress counts steps already made, so the step after `begin` is the first that is lower
            schedule=Cooldown(warmup=warmup, share=(end - begin) / (end - warmup)),
            eval_every=end,
            save_every=end,
            keep_last=1,
        )
        return self._order(training, begins={"source": source, TRUNK: self.trunk().key, "step": begin})

    def _training(self) -> tuple[Training, float]:
        training = self.entrant.recipe.training
        steps = UNIT * self.part
        # a schedule may be the whole rate (inverse square root): what counts is the peak it reaches
        peak = max(training.schedule.scale(step, steps) for step in range(1, steps + 1))
        lr = (self.lr or training.optimiser.lr) * peak
        warmup = float(min(max(round(training.schedule.warmup_steps(steps)), 1), 2 * self.part))
        training = training.replace(optimiser=training.optimiser.replace(lr=lr), patience=0)
        return training, warmup

    def _order(self, training: Training, **fields: Any) -> Trial:
        recipe = assigned(self.entrant.recipe.replace(training=training), self.others)
        return self.plan.order(self.entrant, recipe, self.seed, held_out=self.held_out, **fields)


def gathered(measure: str, outcomes: Mapping[float, Sequence[Outcome]]) -> tuple[Branch, ...]:
    """Return the finished loss at every share of the budget."""
    branches = []
    for share, trials in sorted(outcomes.items()):
        losses = {str(trial.seed): trial.scores.get(measure) if trial.done else None for trial in trials}
        branches.append(
            Branch(
                share=share,
                tokens=max((trial.tokens for trial in trials), default=0),
                flops=max((trial.flops for trial in trials), default=0.0),
                losses=losses,
                mean=mean_of(losses),
            )
        )
    return tuple(branches)
