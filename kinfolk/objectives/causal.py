"""Causal language modelling: next-token prediction (Bengio et al. 2003; Radford et al. 2018)."""

import torch
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output
from kinfolk.objectives.objective import LATER, Objective, Vocabulary, joined, summed, token_losses


class CausalLM(Objective, kind="causal"):
    """The next token, at every position of a text; of a pair, the target's tokens after the source and a separator."""

    @property
    def targets(self) -> str:
        return LATER

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if batch.source is None:
            tokens, targets = batch.tokens[:, :-1], batch.tokens[:, 1:]
            keep = None if batch.keep is None else batch.keep[:, :-1]
            if batch.keep is not None:
                targets = targets.masked_fill(~batch.keep[:, 1:], IGNORE)
            document, positions = (None if x is None else x[:, :-1] for x in (batch.document, batch.positions))
            if batch.document is not None:
                targets = targets.masked_fill(batch.document[:, 1:] != batch.document[:, :-1], IGNORE)
            return batch.replace(tokens=tokens, targets=targets, keep=keep, document=document, positions=positions)
        tokens, keep, is_target = joined(batch, vocabulary.sep, vocabulary.pad)
        targets = torch.where(is_target, tokens, IGNORE)[:, 1:]
        return Batch(index=batch.index, tokens=tokens[:, :-1], keep=keep[:, :-1], targets=targets)

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        """Text: all positions, and the second half given the first, which an encoder-decoder can be asked for too."""
        losses, real = token_losses(output, batch)
        # the source of a pair is never scored, a text is from its first token on
        if not bool(real[:, 0].any()):
            return {"target-token": summed(losses, real)}
        late = torch.arange(losses.shape[1], device=losses.device) >= losses.shape[1] // 2
        return {"next-token": summed(losses, real), "continuation": summed(losses, real & late)}
