r"""Learn from a larger model: its probabilities, its states, and the task's own targets (Sanh et al. 2019).

$L = a\,T^2\,\mathrm{KL}(p_t(T) \| p_s(T)) + b\,\mathrm{CE} + c\,(1 - \cos(h_s, h_t))$ for each scored target, with
$p(T)$ the softmax of logits over a temperature; the teacher runs as in evaluation and is not learnt.
"""

import dataclasses
import functools
import tomllib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import from_plain
from kinfolk.core.rng import Rng
from kinfolk.models.folder import load_model
from kinfolk.models.model import Model, Output, State, Transformer
from kinfolk.objectives.objective import Learning, Loss, Objective, Vocabulary, side_loss

CHUNK = 4096
"""Positions whose logits, of student and teacher, are held at once."""


@dataclasses.dataclass(eq=False)
class Taught(Output):
    """What a student said, and what its teacher said of the same."""

    teacher: Output | None = None


class Distil(Objective, kind="distil"):
    """Do a task as a teacher does it. `teacher` is a run folder or a saved model; the weights are DistilBERT's.

    `states` (c) asks for a student of the teacher's width, and is left out at 0.
    """

    task: Objective
    teacher: str
    temperature: float = 2.0
    soft: float = 5.0
    hard: float = 2.0
    states: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise SpecError(f"temperature: {self.temperature} is not allowed; it divides logits, so it is above 0")

    @property
    def extra_ids(self) -> int:
        return self.task.extra_ids

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        return self.task.prepare(batch, rng, vocabulary)

    def companion(self, model: Model) -> Model | None:
        return self.task.companion(model)

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        said, batch = self.task.run(learner, batch, memory)
        if not learner.model.training:
            return said, batch
        teacher = teacher_of(self.teacher, said.hidden.device, said.hidden.dtype)
        if self.states and teacher.spec.d_model != learner.model.spec.d_model:
            raise SpecError(
                f"objective.states: a teacher of width {teacher.spec.d_model} and a student of width "
                f"{learner.model.spec.d_model} have no states to compare; set it to 0"
            )
        with torch.no_grad():
            heard = teacher.run(batch)
        own = {field.name: getattr(said, field.name) for field in dataclasses.fields(said)}
        return Taught(**own, teacher=heard), batch

    def loss(self, output: Output, batch: Batch) -> Loss:
        if not isinstance(output, Taught) or output.teacher is None:
            return self.task.loss(output, batch)
        assert batch.targets is not None
        scored_BL = batch.targets != IGNORE
        total = self.hard * self.task.loss(output, batch).total
        mine, its = (out.hidden[scored_BL] for out in (output, output.teacher))
        if self.soft:
            total = total + self.soft * self._soft(output, output.teacher, mine, its)
        if self.states:
            total = total + self.states * (1 - F.cosine_similarity(mine, its, dim=-1)).sum()
        return Loss(total, scored_BL.sum(), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        return self.task.measure(output, batch)

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
    model = load_model(folder, _model_spec).to(device=device, dtype=dtype).eval()
    return model.requires_grad_(False)


def _model_spec(file: Path) -> Model:
    """Read the model of a saved model's spec, or of a recipe."""
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    return from_plain(Model, data.get("model", data), str(file))
