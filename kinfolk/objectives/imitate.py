r"""Layer-wise knowledge distillation of embedding, hidden states and attention (TinyBERT, Jiao et al. 2020).

Every layer m of a student of M layers is held to layer $g(m) = m N / M$ of a teacher of N, the first being 1:
$\mathrm{MSE}(H_m W, H_{g(m)})$, the same for what the embedding gives, and $\mathrm{MSE}(A_m, A_{g(m)})$ of scores
before the softmax, 0 where a key is hidden (TinyBERT, equations 7 to 9, and its code). W is learnt beside the student.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.batch import Batch
from kinfolk.core.bounds import NonNegativeFloat, PositiveFloat, Probability
from kinfolk.core.errors import SpecError
from kinfolk.layers.module import Linear, Module
from kinfolk.models.model import Model, Output, State, Transformer
from kinfolk.objectives.distil import Distil, Taught, teacher_of
from kinfolk.objectives.objective import Learning, Loss

STACKS = ("encoder", "decoder")
INSIDE, OUTSIDE = 0, 1


class Imitate(Distil, kind="imitate"):
    """Do inside as a teacher does, for `inside` of the training, then say what it says.

    `embedding`, `layers`, `attention` weigh the three losses, each a mean over real tokens or pairs and a sum over
    layers. Then they end, and `soft`, `hard` and `states` are those of `Distil`, with TinyBERT's numbers: the teacher's
    probabilities as they are. Attention can be compared where student and teacher have as many heads.
    """

    temperature: PositiveFloat = 1.0
    soft: NonNegativeFloat = 1.0
    hard: NonNegativeFloat = 0.0
    states: NonNegativeFloat = 0.0
    embedding: NonNegativeFloat = 1.0
    layers: NonNegativeFloat = 1.0
    attention: NonNegativeFloat = 1.0
    inside: Probability = 0.5

    def stage(self, progress: float, model: Model) -> int:
        return INSIDE if progress < self.inside else OUTSIDE

    def partner(self, model: Transformer, seed: int) -> Module | None:
        if self.task.companion(model.spec) is not None:
            raise SpecError(f"objective.task: {self.task.kind!r} learns a second network, which cannot imitate as well")
        return Widened(model.spec.d_model, self._teacher(model).spec.d_model).to(next(model.parameters()))

    def asks(self, learner: Learning) -> tuple[str, ...]:
        if learner.stage != INSIDE:
            return ()
        return (*(("hidden",) if self.layers else ()), *(("scores", "weights") if self.attention else ()))

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        if not learner.model.training:
            return self.task.run(learner, batch, memory)
        teacher = self._teacher(learner.model)
        with _embedded(learner.model) as mine, _embedded(teacher) as its:
            output, batch = super().run(learner, batch, memory)
        assert isinstance(output, Taught)
        assert output.teacher is not None
        assert isinstance(learner.partner, Widened)
        # every parameter is part of every loss, which is what several processes ask for
        nothing = next(learner.model.parameters()).new_zeros(())
        output.side_losses["imitated"] = sum((p.sum() * 0 for p in learner.partner.parameters()), nothing)
        if learner.stage == INSIDE:
            keeps = {"encoder": batch.keep if batch.source is None else batch.source_keep, "decoder": batch.keep}
            losses = self._inside(output, learner.partner, keeps, (learner.model.spec, teacher.spec))
            if self.embedding:
                pairs = zip(mine, its, strict=True)
                sides = [keeps["encoder"], keeps["decoder"]] if len(mine) == 2 else [batch.keep]
                apart = [mean_square(learner.partner(a), b, keep) for (a, b), keep in zip(pairs, sides, strict=True)]
                losses = [*losses, self.embedding * torch.stack(apart).sum()]
            output.side_losses["imitated"] += torch.stack(losses).sum() if losses else 0
            output.inside = True
        return output, batch

    def loss(self, output: Output, batch: Batch) -> Loss:
        if not isinstance(output, Taught) or not output.inside:
            return super().loss(output, batch)
        task = self.task.loss(output, batch)
        return Loss(0 * task.total, task.count, task.side)

    def _teacher(self, model: Transformer) -> Transformer:
        own = next(model.parameters())
        return teacher_of(self.teacher, own.device, own.dtype)

    def _inside(
        self, output: Taught, widened: "Widened", keeps: dict[str, Tensor | None], specs: tuple[Model, Model]
    ) -> list[Tensor]:
        assert output.teacher is not None
        losses = []
        for stack, mine, its in pairs_of(*specs):
            if self.layers:
                a, b = output.taps[f"{stack}.{mine}.hidden"], output.teacher.taps[f"{stack}.{its}.hidden"]
                losses.append(self.layers * mean_square(widened(a), b, keeps[stack]))
            if self.attention:
                mine_its = (_scores(output, stack, mine), _scores(output.teacher, stack, its))
                losses += [self.attention * _apart(a, b, stack, mine) for a, b in zip(*mine_its, strict=True)]
        return losses


class Widened(Module):
    """The map from a student's states to its teacher's, at first the identity as far as that goes."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__()
        self.map = Linear(d_in, d_out)
        nn.init.eye_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


def teachers(n_student: int, n_teacher: int) -> list[int]:
    """Return which layer of a teacher each layer of a student is held to; the last is held to the last."""
    return [round((m + 1) * n_teacher / n_student) - 1 for m in range(n_student)]


def pairs_of(student: Model, teacher: Model) -> Iterator[tuple[str, int, int]]:
    """Yield each layer of a student, by stack and number, and the number of its teacher's."""
    for stack in STACKS:
        mine, its = getattr(student, stack), getattr(teacher, stack)
        if (mine is None) != (its is None):
            raise SpecError(f"{stack}: student and teacher are of other topologies, so no layers correspond")
        if mine is not None:
            for m, g in enumerate(teachers(mine.n_layers, its.n_layers)):
                yield stack, m, max(0, g)


def mean_square(a_BLD: Tensor, b_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
    """Return the mean squared difference over real tokens."""
    apart = (a_BLD - b_BLD).square()
    return apart.mean() if keep_BL is None else apart[keep_BL].mean()


def _scores(output: Output, stack: str, layer: int) -> list[Tensor]:
    """Return the scores of a layer's attentions, 0 where a key is hidden."""
    found = []
    for path, scores in output.taps.items():
        if path.startswith(f"{stack}.{layer}.") and path.endswith(".scores"):
            weights = output.taps[path.removesuffix("scores") + "weights"]
            found.append(scores.masked_fill(weights == 0, 0.0))
    return found


def _apart(a_BHLM: Tensor, b_BHLM: Tensor, stack: str, layer: int) -> Tensor:
    if torch.is_grad_enabled() and not a_BHLM.requires_grad:
        raise SpecError(f"objective.attention: the student's {stack} is reversible and keeps no scores; set it to 0")
    if a_BHLM.shape != b_BHLM.shape:
        raise SpecError(
            f"objective.attention: layer {layer + 1} of the student's {stack} has {a_BHLM.shape[1]} heads and that of "
            f"its teacher {b_BHLM.shape[1]}; give it as many, or set attention to 0"
        )
    return (a_BHLM - b_BHLM).square().mean()


@contextlib.contextmanager
def _embedded(model: Any) -> Iterator[list[Tensor]]:
    """Give a list that gets every output of a model's embedding."""
    outputs: list[Tensor] = []
    handle = model.embedding.register_forward_hook(lambda module, given, out: outputs.append(out))
    try:
        yield outputs
    finally:
        handle.remove()
