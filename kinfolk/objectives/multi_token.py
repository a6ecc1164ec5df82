"""Multi-token prediction: a chain of small modules predicts the tokens after the next (DeepSeek-V3, 2024)."""

import dataclasses
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.core.batch import Batch
from kinfolk.core.bounds import NonNegativeFloat, PositiveInt
from kinfolk.core.context import Context, Padding
from kinfolk.core.device import host, send
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import derive
from kinfolk.layers.init import seeded
from kinfolk.layers.module import Linear, Module, Shared
from kinfolk.models.model import Model, Output, State, Transformer
from kinfolk.models.stack import Stack
from kinfolk.objectives.auxiliary import add_side_loss, later_targets
from kinfolk.objectives.objective import Learning, Objective, Wrapper


class MultiToken(Wrapper, Objective, kind="multi-token"):
    r"""What `of` asks for, and `n_modules` further tokens, each by a module that reads the one before it.

    DeepSeek-AI 2024 (DeepSeek-V3), section 2.2: module k joins the states of module k - 1 (of the model, for the first)
    with the embedding of the token k positions later,
    $h'^k_i = M_k [\mathrm{norm}(h^{k-1}_i); \mathrm{norm}(E(t_{i+k}))]$, runs a block like the model's last one, and
    predicts $t_{i+k+1}$ through the model's output layer. The losses are means, weighed by
    `target_weight` / `n_modules`.
    States of the model are those behind its closing norm; a module has a closing norm of its own, as in the released
    weights. Evaluation and generation know nothing of the modules.
    """

    wraps: ClassVar[str] = "of"

    of: Objective
    n_modules: PositiveInt = 1
    target_weight: NonNegativeFloat = 0.3

    def companion(self, model: Model) -> Model | None:
        """Return a decoder of the modules' blocks: what they cost, but for the maps that join states and tokens."""
        stack = _stack(model)
        blocks = (stack.blocks[stack.order[-1]],) * self.n_modules
        order = tuple(range(self.n_modules))
        return model.replace(decoder=Stack(blocks=blocks, order=order, norm=stack.norm))

    def partner(self, model: Transformer, seed: int) -> Module | None:
        modules = _Modules(model, self.n_modules)
        seeded(model.spec.init, modules, model.spec.dims, derive(seed, "multi-token"))
        return modules.to(next(model.parameters()))

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        output = learner.model.run(batch, memory)
        if learner.model.training:
            assert isinstance(learner.partner, _Modules)
            self._predict(learner.model, learner.partner, batch, output)
        return output, batch

    def _predict(self, model: Transformer, modules: "_Modules", batch: Batch, output: Output) -> None:
        assert batch.targets is not None
        padding = None if batch.keep is None else Padding.of(batch.keep)
        ctx = Context(padding=padding, group_BL=batch.document, pos_BL=batch.positions)
        document = None if batch.document is None else host(batch.document)
        x_BLD = output.hidden
        for k, module in enumerate(modules.chain, start=1):
            tokens_BL = F.pad(batch.tokens[:, k:], (0, k))[:, : batch.tokens.shape[1]]
            x_BLD = module(x_BLD, model.embedding(tokens_BL, ctx), ctx)
            targets = send(later_targets(host(batch.targets), document, k), batch.targets.device)
            weight = self.target_weight / self.n_modules
            add_side_loss(output, f"target {k + 1}", weight, output.head, modules.norms[k - 1](x_BLD), targets)


class _Modules(Module):
    """The chain: every module has its own weights."""

    def __init__(self, model: Transformer, n: int) -> None:
        super().__init__()
        norm, width = _stack(model.spec).norm, model.spec.d_model
        self.chain = nn.ModuleList(_Module(model) for _ in range(n))
        self.norms = nn.ModuleList(norm.build(width) for _ in range(n))


class _Module(Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        stack, dims = _stack(model.spec), model.spec.dims
        self.norm_state, self.norm_token = (stack.norm.build(dims.d_model) for _ in range(2))
        self.join = Linear(2 * dims.d_model, dims.d_model, bias=False)
        inside = dataclasses.replace(dims, direction="past", shared=Shared())
        self.block = stack.blocks[stack.order[-1]].build(inside)
        self.shared = nn.ModuleList(inside.shared.modules.values())

    def forward(self, x_BLD: Tensor, token_BLD: Tensor, ctx: Context) -> Tensor:
        joined_BLD = self.join(torch.cat([self.norm_state(x_BLD), self.norm_token(token_BLD)], -1))
        return self.block(joined_BLD, ctx, None)


def _stack(model: Model) -> Stack:
    if not isinstance(model.decoder, Stack) or model.encoder is not None:
        raise SpecError("multi-token: needs a decoder alone that is a stack of blocks, whose last one is repeated")
    return model.decoder
