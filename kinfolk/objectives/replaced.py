"""Replaced-token detection with a small generator (ELECTRA, Clark et al. 2020)."""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.annotations import UniformNoise
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import NonNegativeFloat, Probability
from kinfolk.core.device import host, send, wide
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng, derive
from kinfolk.layers.embeddings.embedding import ProjectedModule
from kinfolk.layers.heads.head import HeadModule
from kinfolk.layers.module import Module, borrow
from kinfolk.models.model import Model, Output, State, Transformer, build_model
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.objective import Learning, Loss, Vocabulary, side_loss
from kinfolk.ops.cross_entropy import CHUNK_BYTES

GENERATOR = "generator"


class ReplacedTokens(MaskedLM, kind="replaced-tokens"):
    r"""$L = L_{MLM}(G) + \lambda L_{disc}(D)$ with $\lambda$ = `weight` (Clark et al. 2020, section 2).

    The `generator` fills in hidden tokens; its samples replace them when the model reads the text. A token
    counts as replaced where it differs from what was there, so that a lucky draw is no replacement. Nothing is learnt
    through the draw. Both losses are means, over the hidden tokens and over all real ones. The two share the
    embedding of tokens, positions and segments, and the generator has a map of its own after it. 15 % of what is to be
    predicted stays visible, as in the released code.
    """

    generator: Model
    weight: NonNegativeFloat = 50.0
    as_mask: Probability = 0.85
    as_random: Probability = 0.0

    measured: ClassVar[str] = "replaced-token"

    def companion(self, model: Model) -> Model | None:
        return self.generator.replace(vocab_size=model.vocab_size, max_len=model.max_len)

    def partner(self, model: Transformer, seed: int) -> Module | None:
        spec = self.companion(model.spec)
        assert spec is not None
        generator = build_model(spec, derive(seed, GENERATOR))
        outer, inner = generator.embedding, model.embedding
        if not isinstance(outer, ProjectedModule):
            raise SpecError("objective.generator.embedding: must be 'projected', a map after what is shared")
        inner = inner.inner if isinstance(inner, ProjectedModule) else inner
        if inner.weight.shape != outer.weight.shape:
            raise SpecError(
                f"objective.generator.embedding.d_inner: {outer.weight.shape[1]} is not the width of the model's "
                f"embedding, {inner.weight.shape[1]}, which is shared"
            )
        del outer.inner
        borrow(outer, "inner", inner)
        return generator.to(inner.weight)

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        made = super().prepare(batch, rng, vocabulary)
        width = made.tokens.shape[1]
        # drawn with the example, so that what a generator says depends on nothing but its weights and the example
        lots = [rng.example(index, "replaced").random(width, np.float32) for index in made.index.tolist()]
        return made.annotate(UniformNoise(torch.from_numpy(np.stack(lots))))

    def run(self, learner: Learning, batch: Batch, memory: State | None = None) -> tuple[Output, Batch]:
        generator = learner.partner
        assert isinstance(generator, Transformer)
        assert batch.targets is not None
        noise = batch.annotation(UniformNoise)
        assert noise is not None
        chosen = batch.targets != IGNORE
        at_L = send((host(batch.targets).flatten() != IGNORE).nonzero()[:, 0], chosen.device)
        said = generator.run(batch)
        told, n_chosen = said.head.loss(said.hidden, batch.targets), chosen.sum()
        drawn = draw(said.head, said.hidden.detach().flatten(0, 1)[at_L], noise.noise_BL.flatten()[at_L])
        tokens = batch.tokens.flatten().index_copy(0, at_L, drawn).view_as(chosen)
        replaced = (tokens != torch.where(chosen, batch.targets, batch.tokens)).long()
        targets = replaced if batch.keep is None else replaced.masked_fill(~batch.keep, IGNORE)
        read = batch.replace(tokens=tokens, targets=targets)
        output = learner.model.run(read, memory)
        output.side_losses[GENERATOR] = told / n_chosen.clamp(min=1)
        output.taps |= {"generator.nats": told.detach(), "generator.count": n_chosen}
        return output, read

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.targets is not None
        total = self.weight * output.head.loss(output.hidden, batch.targets)
        return Loss(total, (batch.targets != IGNORE).sum(), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        generator = wide(output.taps["generator.nats"]), output.taps["generator.count"]
        return super().measure(output, batch) | {"generator-token": generator}


@torch.no_grad()
def draw(head: HeadModule, x_LD: Tensor, lots_L: Tensor) -> Tensor:
    r"""Draw a token for each state, by a number u in [0, 1) each: the first whose cumulated probability exceeds u."""
    found = [x_LD.new_zeros(0, dtype=torch.long)]
    step = max(1, CHUNK_BYTES // (4 * int(head.weight.shape[0])))
    for x_lD, lots_l in zip(x_LD.split(step), lots_L.split(step), strict=True):
        sums_lV = head.logits(x_lD).float().softmax(-1).cumsum(-1)
        at = torch.searchsorted(sums_lV, (lots_l[:, None] * sums_lV[:, -1:]).contiguous(), right=True)
        found.append(at[:, 0].clamp(max=sums_lV.shape[1] - 1))
    return torch.cat(found)
