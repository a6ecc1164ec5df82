"""Policy gradient by proximal policy optimisation (PPO, Schulman et al. 2017)."""

import dataclasses

from torch import Tensor

from kinfolk.core.annotations import Annotation
from kinfolk.core.batch import Batch
from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, Probability
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.layers.heads.policy_head import PolicyHeadModule
from kinfolk.models.model import Output
from kinfolk.objectives.objective import LATER, Loss, Objective, Vocabulary, side_loss
from kinfolk.ops.ppo import surrogate


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Rollout(Annotation):
    """Of a batch whose `tokens` are observations, `targets` actions and `document` the episodes in a row.

    `log_probs` and `values` are those of the policy that acted.
    """

    log_probs: Tensor  # [B, L]
    values: Tensor  # [B, L]
    advantages: Tensor  # [B, L] of the actions, normalised to mean 0 and variance 1
    returns: Tensor  # [B, L] the targets of the values


class Policy(Objective, kind="policy"):
    """The clipped surrogate, a squared error of values and a bonus for staying undecided.

    The error is divided by the variance of the returns where that is above 1.

    gamma, decay: how far rewards count, and how far they are trusted beyond the values (see `kinfolk.ops.gae`).
    clip: how much likelier or unlikelier than when it was taken an action may become.
    value_weight, entropy_weight: beside the surrogate.
    epochs: updates on every rollout.
    """

    gamma: Probability = 0.99
    decay: Probability = 0.95
    clip: PositiveFloat = 0.2
    value_weight: NonNegativeFloat = 0.5
    entropy_weight: NonNegativeFloat = 0.01
    epochs: PositiveInt = 4

    @property
    def targets(self) -> str:
        return LATER

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        """Return the batch: acting has prepared everything."""
        return batch

    def loss(self, output: Output, batch: Batch) -> Loss:
        rollout = batch.annotation(Rollout)
        if rollout is None or not isinstance(output.head, PolicyHeadModule):
            raise SpecError("objective 'policy' learns from rollouts with a policy head: kin train RELATIVE --env E")
        assert batch.targets is not None
        said_BLV = output.head.logits(output.hidden)
        log_probs_BL = output.head.log_probs(said_BLV, batch.targets)
        actor_BL = surrogate(log_probs_BL, rollout.log_probs, rollout.advantages, self.clip)
        # returns of hundreds would leave the actor no room under a clipped gradient
        spread = rollout.returns.var(correction=0).clamp(min=1.0)
        critic_BL = 0.5 * (output.head.value(output.hidden) - rollout.returns).square() / spread
        total = (actor_BL + self.value_weight * critic_BL - self.entropy_weight * output.head.entropy(said_BLV)).sum()
        return Loss(total, total.new_tensor(float(rollout.returns.numel())), side_loss(output))
