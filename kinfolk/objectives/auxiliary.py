"""Auxiliary losses at intermediate layers, positions and future tokens (Al-Rfou et al. 2018)."""

from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import NonNegativeFloat, PositiveInt
from kinfolk.core.device import host, send
from kinfolk.core.rng import derive
from kinfolk.layers.heads.head import HeadModule, LMHead
from kinfolk.layers.init import seeded
from kinfolk.layers.module import Module
from kinfolk.models.model import Model, Output, State, Transformer
from kinfolk.objectives.objective import Learning, Objective, Wrapper


class Auxiliary(Wrapper, Objective, kind="auxiliary"):
    """What `of` asks for, and besides (Al-Rfou et al. 2018, section 3).

    `positions`: "every" one of a row is scored, or the "last" alone, which is what the others are auxiliary to.
    `layer_weight`: what the states of the lower layers are worth, through the same output layer and after the norm that
    closes the stack. Layer l of n is asked until l / 2n of the training is over, so that at half-time only the last is.
    `n_targets` future tokens are predicted instead of one, each of the further ones by an output layer of its own, for
    `target_weight`, to the end of the training. Evaluation knows nothing of all this.
    """

    wraps: ClassVar[str] = "of"

    of: Objective
    positions: Literal["every", "last"] = "every"
    layer_weight: NonNegativeFloat = 1.0
    n_targets: PositiveInt = 2
    target_weight: NonNegativeFloat = 0.5

    def stage(self, progress: float, model: Model) -> int:
        """Return how many of the lower layers are done."""
        n = _depth(model)
        return min(n - 1, int(2 * n * progress))

    def partner(self, model: Transformer, seed: int) -> Module | None:
        if self.n_targets == 1:
            return None
        heads = _Further(model, self.n_targets - 1)
        seeded(model.spec.init, heads, model.spec.dims, derive(seed, "further"))
        return heads.to(next(model.parameters()))

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        model, seen = learner.model, batch
        asks_layers = self.layer_weight > 0 and learner.stage < _depth(model.spec) - 1 and model.training
        output = model.run(batch, memory, taps=("hidden",) if asks_layers else ())
        assert batch.targets is not None
        if self.positions == "last" and model.training:
            seen = batch.replace(targets=send(_last(host(batch.targets)), batch.targets.device))
        if model.training:
            self._add_layers(output, seen, model, learner.stage)
            self._add_targets(output, seen, learner.partner)
        return output, seen

    def _add_layers(self, output: Output, batch: Batch, model: Transformer, done: int) -> None:
        stack = model.encoder if model.decoder is None else model.decoder
        norm = getattr(stack, "norm", nn.Identity())
        name = "encoder" if model.decoder is None else "decoder"
        for layer in range(done, _depth(model.spec) - 1):
            states = output.taps.get(f"{name}.{layer}.hidden")
            if states is not None:
                add_side_loss(output, f"layer {layer + 1}", self.layer_weight, output.head, norm(states), batch.targets)

    def _add_targets(self, output: Output, batch: Batch, heads: Module | None) -> None:
        assert batch.targets is not None
        for further, head in enumerate(heads.heads if isinstance(heads, _Further) else (), start=1):
            document = None if batch.document is None else host(batch.document)
            targets = send(later_targets(host(batch.targets), document, further), batch.targets.device)
            own = cast(HeadModule, head)
            add_side_loss(output, f"target {further + 1}", self.target_weight, own, output.hidden, targets)


class _Further(Module):
    """Output layers for tokens after the next."""

    def __init__(self, model: Transformer, n: int) -> None:
        super().__init__()
        spec = LMHead(weights="untied", bias=True)
        self.heads = nn.ModuleList(spec.build(model.spec.dims, model.embedding) for _ in range(n))


def add_side_loss(
    output: Output, name: str, weight: float, head: HeadModule, x_BLD: Tensor, targets: Tensor | None
) -> None:
    """Add the mean loss of some targets to what is learnt on the side."""
    assert targets is not None
    mean = head.loss(x_BLD, targets) / (targets != IGNORE).sum().clamp(min=1)
    output.side_losses[name] = weight * mean


def _last(targets_BL: Tensor) -> Tensor:
    """Leave the last scored target of each row."""
    place_BL = torch.arange(targets_BL.shape[1], device=targets_BL.device).expand_as(targets_BL)
    last_B1 = place_BL.masked_fill(targets_BL == IGNORE, -1).amax(1, keepdim=True)
    return targets_BL.masked_fill(place_BL != last_B1, IGNORE)


def later_targets(targets_BL: Tensor, document_BL: Tensor | None, n: int) -> Tensor:
    """Return the target n positions later, within the document; at the end of a row there is none."""
    later_BL = F.pad(targets_BL[:, n:], (0, n), value=IGNORE)[:, : targets_BL.shape[1]]
    later_BL = later_BL.masked_fill(targets_BL == IGNORE, IGNORE)
    if document_BL is None:
        return later_BL
    return later_BL.masked_fill(F.pad(document_BL[:, n:], (0, n), value=-1) != document_BL, IGNORE)


def _depth(model: Model) -> int:
    stack = model.encoder if model.decoder is None else model.decoder
    assert stack is not None
    return stack.n_layers
