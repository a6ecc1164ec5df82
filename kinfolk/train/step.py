"""One update of the weights.

The gradient of a step is that of the mean over all its targets, whatever the number of micro-batches and processes:

    grad = d( sum total / sum count  +  sum side * count / sum count )

where a micro-batch's `total` is a sum over its targets. The sums are taken first and the division comes last,
because the number of targets of a step is known only when its last micro-batch has been seen.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from kinfolk.core.batch import Batch
from kinfolk.core.device import seed_draws, send, wide
from kinfolk.core.rng import derive
from kinfolk.objectives.objective import Loss
from kinfolk.optim import Training
from kinfolk.optim.groups import in_order, waits
from kinfolk.train.memory import Memories
from kinfolk.train.parallel import Team


@runtime_checkable
class Paced(Protocol):
    """A module that changes with the number of the step: random features that are drawn anew, for example."""

    def at_step(self, step: int) -> None:
        """Be as this step wants it; called between passes, so that all passes of a step see the same."""


@runtime_checkable
class Staged(Protocol):
    """A module that changes as the training goes on: losses that end half-way, for example."""

    def at_progress(self, progress: float) -> None:
        """Be as this share of the training wants it; called between passes."""


Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclasses.dataclass
class LossScale:
    """The factor that keeps float16 gradients in range (Micikevicius et al. 2018, section 3.2).

    It doubles after `patience` steps without overflow; an overflow halves it and the step is skipped.
    """

    scale: float = 2.0**16
    good: int = 0
    patience: int = 2000

    def overflowed(self) -> None:
        """Halve after a step whose gradient is not finite."""
        self.scale, self.good = self.scale / 2, 0

    def worked(self) -> None:
        """Count a step whose gradient is finite."""
        self.good += 1
        if self.good == self.patience:
            self.scale, self.good = self.scale * 2, 0


@dataclasses.dataclass(frozen=True)
class StepOutcome:
    """What a step did. `totals` are the loss sums of this process's micro-batches, to find one that is not finite."""

    loss: float
    count: float
    tokens: int
    grad_norm: float
    lr: float
    stop: bool
    skipped: bool
    totals: tuple[float, ...]

    @property
    def finite(self) -> bool:
        """Whether training can go on."""
        return math.isfinite(self.loss) and (self.skipped or math.isfinite(self.grad_norm))


@dataclasses.dataclass(frozen=True, eq=False)
class Pending:
    """A step whose numbers may still be on the device: sums of loss, targets, tokens and wishes to stop, norm, losses.

    `reference` is what gradients were divided by; `known` the outcome, once it has been read.
    """

    numbers: Tensor
    reference: float
    lr: float
    known: StepOutcome | None = None

    def outcome(self) -> StepOutcome:
        """Read the numbers: the one synchronisation of a step."""
        if self.known is not None:
            return self.known
        loss, count, read, stops, norm, *totals = self.numbers.tolist()
        count = max(count, 1.0)
        norm = norm * (self.reference / count)
        return StepOutcome(loss / count, count, int(read), norm, self.lr, stops > 0, False, tuple(totals))

    def coefficient(self, clip: float) -> Tensor:
        """Return the factor of gradients, clipping included, without reading a number."""
        # a batch may have no target at all
        factor = self.reference / self.numbers[1].clamp(min=1.0)
        return factor * (clip / (self.numbers[4] * factor)).clamp(max=1.0) if clip else factor


@dataclasses.dataclass(frozen=True, eq=False)
class Behind:
    """A step that was made and whose outcome is still to be read."""

    pending: Pending
    step: int
    batch: Batch
    waited: float


@dataclasses.dataclass
class Stepper:
    """Everything an update needs. `forward` is the learner as the strategy wrapped it, `memories` are those of it."""

    forward: nn.Module
    optimiser: torch.optim.Optimizer
    training: Training
    seed: int
    team: Team
    autocast: Autocast = contextlib.nullcontext
    scale: LossScale | None = None
    memories: Memories = dataclasses.field(default_factory=Memories)

    def update(
        self, batch: Batch, step: int, total: int, *, tokens: int = 0, stop: Callable[[], bool] = lambda: False
    ) -> StepOutcome:
        """Make update number `step` of `total` (the first is 1) and wait for its outcome; see `start`."""
        return self.start(batch, step, total, tokens=tokens, stop=stop).outcome()

    def start(
        self, batch: Batch, step: int, total: int, *, tokens: int = 0, stop: Callable[[], bool] = lambda: False
    ) -> "Pending":
        """Make update number `step` of `total` (the first is 1) with this process's rows of a prepared batch.

        `tokens` is how many were read for it, for the counters. `stop` tells this process's wish to end after this
        step; the outcome carries it to all. On an accelerator the update is only queued: its numbers stay there until
        the outcome is asked for. When the loss or the gradient is not finite the weights are left as they were, on an
        accelerator those of the last checkpoint: a run ends there before it writes another.
        """
        for module in self.forward.modules():
            if isinstance(module, Paced):
                module.at_step(step)
            if isinstance(module, Staged):
                module.at_progress((step - 1) / total)
        self.optimiser.zero_grad(set_to_none=True)
        waiting = self._waiting(step, total)
        sums, totals = self._backward(batch, step)
        for parameter in waiting:
            parameter.grad = None
        own = send(torch.tensor([float(tokens), float(stop())], dtype=sums.dtype), sums.device)
        sums = self.team.sum(torch.cat((sums, own)))
        grads = [p.grad for p in self._parameters if p.grad is not None]
        norm = self.team.full(torch.nn.utils.get_total_norm(grads))
        lr = self.training.optimiser.lr * self.training.schedule.scale(step, total)
        numbers = torch.cat((sums, norm.to(sums)[None], totals))
        pending = Pending(numbers, self.team.world * self._reference, lr)
        if self.late:
            self._apply(grads, pending.coefficient(self.training.clip), lr)
            return pending
        outcome = pending.outcome()
        outcome = dataclasses.replace(outcome, skipped=self._skip(outcome.grad_norm))
        if math.isfinite(outcome.loss) and math.isfinite(outcome.grad_norm):
            clip, size, factor = self.training.clip, outcome.grad_norm, pending.reference / outcome.count
            self._apply(grads, factor * (clip / size if clip and size > clip else 1.0), lr)
        return dataclasses.replace(pending, known=outcome)

    @property
    def late(self) -> bool:
        """Whether outcomes are better read while the next step is computed; a loss scale needs each at once."""
        return self.team.device.type != "cpu" and self.scale is None

    def _apply(self, grads: list[Tensor], factor: float | Tensor, lr: float) -> None:
        """Multiply gradients and update the weights."""
        if isinstance(factor, Tensor):
            # a shard is multiplied like the whole
            grads = [getattr(g, "_local_tensor", g) for g in grads]
            torch._foreach_mul_(grads, factor.to(grads[0].dtype))
        else:
            torch._foreach_mul_(grads, factor)
        for group in self.optimiser.param_groups:
            group["lr"] = lr * group.get("lr_scale", 1.0)
        self.optimiser.step()

    def _waiting(self, step: int, total: int) -> list[nn.Parameter]:
        """Return the parameters whose turn is still to come; a single process does no work for them."""
        parameters: list[nn.Parameter] = []
        for group in self.optimiser.param_groups if self._turns else ():
            waiting = waits(group, step, total)
            parameters += group["params"] if waiting else []
            for parameter in group["params"]:
                # several processes wait for each other's gradients, so theirs are made, and thrown away
                parameter.requires_grad_(not waiting or self.team.world > 1)
        return parameters

    @functools.cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return in_order(self.optimiser)

    @functools.cached_property
    def _turns(self) -> bool:
        return any(group.get("turns") for group in self.optimiser.param_groups)

    def _backward(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Add up the gradients of the micro-batches; return the sums of loss and targets, and each loss."""
        sums = []
        for micro, (part, last) in enumerate(_parts(batch, self.training.accumulate)):
            part = part.map(lambda x: send(x, self.team.device))
            # dropout is a function of (seed, step, process, micro-batch), so a checkpoint stores no random state
            seed_draws(derive(self.seed, "step", step, self.team.rank, micro), self.team.device)
            with self.team.holding(self.forward, last=last):
                with self.autocast():
                    loss: Loss = self.forward(part, *self.memories.before(micro, part))
                torch.autograd.backward(self._weigh(loss))
            sums.append(torch.stack((wide(loss.total.detach()), wide(loss.count.detach()))))
        self.memories.settle()
        each = torch.stack(sums)
        return each.sum(0), each[:, 0]

    def _weigh(self, loss: Loss) -> Tensor:
        # dividing by a constant keeps float16 in range; `update` replaces it by the number of targets
        return (loss.total + loss.side * loss.count) / self._reference

    @property
    def _reference(self) -> float:
        constant = float(self.training.batch_size * self.training.length)
        return constant / self.scale.scale if self.scale else constant

    def _skip(self, norm: float) -> bool:
        if self.scale is None:
            return False
        if math.isfinite(norm):
            self.scale.worked()
            return False
        self.scale.overflowed()
        return True


def tokens_of(batch: Batch) -> int:
    """Count the real tokens of a batch that is not prepared yet.

    The last of a row is only predicted, never read, but where the row or its tokens have labels it is read too.
    """

    def real(ids: Tensor, keep: Tensor | None) -> int:
        return ids.numel() if keep is None else int(keep.sum())

    judged = batch.labels is not None or batch.targets is not None
    read = real(batch.tokens, batch.keep) - (0 if judged else len(batch))
    return read + (real(batch.source, batch.source_keep) if batch.source is not None else 0)


def _parts(batch: Batch, count: int) -> Iterator[tuple[Batch, bool]]:
    rows = len(batch) // count
    for micro in range(count):
        yield batch.rows(slice(micro * rows, (micro + 1) * rows)), micro == count - 1
