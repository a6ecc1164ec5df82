r"""Knowledge distillation: a teacher's probabilities and hidden states (DistilBERT, Sanh et al. 2019).

$L = a\,T^2\,\mathrm{KL}(p_t(T) \| p_s(T)) + b\,\mathrm{CE} + c\,(1 - \cos(h_s, h_t))$ for each scored target, with
$p(T)$ the softmax of logits over a temperature; the teacher runs as in evaluation and is not learnt. Where whole
sequences have labels, the probabilities are of their classes and the cosine is the mean over real tokens; answers that
are no probabilities, numbers or classes that hold together, are compared by the square of their difference.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat
from kinfolk.core.errors import SpecError
from kinfolk.models.model import Model, Output, State, Transformer
from kinfolk.objectives.objective import Learning, Loss, Objective, Wrapper, side_loss
from kinfolk.objectives.supervised import Classify

CHUNK = 4096
"""Positions whose logits, of student and teacher, are held at once."""


@dataclasses.dataclass(eq=False)
class Taught(Output):
    """What a student said, and what its teacher said of the same."""

    teacher: Output | None = None
    inside: bool = False  # what is said does not count yet


class Listening:
    """A learner whose model reports what it does in every pass."""

    def __init__(self, learner: Learning, taps: tuple[str, ...]) -> None:
        self.partner, self.stage = learner.partner, learner.stage
        self.model: Any = _Reporting(learner.model, taps)


class _Reporting:
    def __init__(self, model: Transformer, taps: tuple[str, ...]) -> None:
        self._model, self._taps = model, taps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, batch: Batch, state: State | None = None, taps: Any = ()) -> Output:
        """Run it, and hear more than was asked for."""
        return self._model.run(batch, state, (*self._taps, *(taps or ())))


class Distil(Wrapper, Objective, kind="distil"):
    """Do a task as a teacher does it. `teacher` is a run folder or a saved model; the weights are DistilBERT's.

    `states` (c) asks for a student of the teacher's width, and is left out at 0.
    """

    wraps: ClassVar[str] = "task"

    task: Objective
    teacher: str
    temperature: PositiveFloat = 2.0
    soft: NonNegativeFloat = 5.0
    hard: NonNegativeFloat = 2.0
    states: NonNegativeFloat = 1.0

    def companion(self, model: Model) -> Model | None:
        return self.task.companion(model)

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        asked = self.asks(learner) if learner.model.training else ()
        said, batch = self.task.run(Listening(learner, asked) if asked else learner, batch, memory)
        if not learner.model.training:
            return said, batch
        teacher = teacher_of(self.teacher, said.hidden.device, said.hidden.dtype)
        if self.states and teacher.spec.d_model != learner.model.spec.d_model:
            raise SpecError(
                f"objective.states: a teacher of width {teacher.spec.d_model} and a student of width "
                f"{learner.model.spec.d_model} have no states to compare; set it to 0"
            )
        with torch.no_grad():
            heard = teacher.run(batch, taps=self.asks(learner))
        own = {field.name: getattr(said, field.name) for field in dataclasses.fields(said)}
        return Taught(**own, teacher=heard), batch

    def asks(self, learner: Learning) -> tuple[str, ...]:
        """Return the taps of student and teacher that are compared at this stage."""
        return ()

    def loss(self, output: Output, batch: Batch) -> Loss:
        if not isinstance(output, Taught) or output.teacher is None:
            return self.task.loss(output, batch)
        if batch.targets is None:
            return self._labelled(output, output.teacher, batch)
        scored_BL = batch.targets != IGNORE
        total = self.hard * self.task.loss(output, batch).total
        mine, its = (out.hidden[scored_BL] for out in (output, output.teacher))
        if self.soft:
            total = total + self.soft * self._soft(output, output.teacher, mine, its)
        if self.states:
            total = total + self.states * (1 - F.cosine_similarity(mine, its, dim=-1)).sum()
        return Loss(total, scored_BL.sum(), side_loss(output))

    def _labelled(self, output: Output, teacher: Output, batch: Batch) -> Loss:
        task = self.task.loss(output, batch)
        total = self.hard * task.total
        if self.soft and isinstance(self.task, Classify):
            target, said = (out.logits.div(self.temperature).log_softmax(-1) for out in (teacher, output))
            total = total + self.soft * self.temperature**2 * F.kl_div(said, target, reduction="sum", log_target=True)
        elif self.soft:
            apart = (output.logits - teacher.logits).square().reshape(len(output.logits), -1).mean(1)
            total = total + self.soft * apart.sum() * task.count / len(apart)
        if self.states:
            apart_BL = 1 - F.cosine_similarity(output.hidden, teacher.hidden, dim=-1)
            real_BL = torch.ones_like(apart_BL) if output.keep is None else output.keep.to(apart_BL)
            total = total + self.states * ((apart_BL * real_BL).sum(1) / real_BL.sum(1).clamp(min=1)).sum()
        return Loss(total, task.count, task.side)

    def _soft(self, student: Output, teacher: Output, mine_LD: Tensor, its_LD: Tensor) -> Tensor:
        total = mine_LD.new_zeros(())
        for a, b in zip(mine_LD.split(CHUNK), its_LD.split(CHUNK), strict=True):
            with torch.no_grad():
                target = (teacher.head.logits(b) / self.temperature).log_softmax(-1)
            said = (student.head.logits(a) / self.temperature).log_softmax(-1)
            total = total + F.kl_div(said, target, reduction="sum", log_target=True)
        return self.temperature**2 * total


@functools.lru_cache(maxsize=2)
def teacher_of(folder: str, device: torch.device, dtype: torch.dtype) -> Transformer:
    """Return a teacher, read once in a process: no parameter of it is learnt or saved with the student."""
    (opener,) = _openers
    return opener(folder).to(device=device, dtype=dtype).eval().requires_grad_(False)


_openers: list[Callable[[str], Transformer]] = []


def open_teachers_by(opener: Callable[[str], Transformer]) -> None:
    """Say how a teacher is read from its folder: trained models are opened in `runs`, above objectives."""
    _openers[:] = [opener]
