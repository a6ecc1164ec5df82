"""Sequence to sequence learning with teacher forcing (Sutskever et al. 2014; Vaswani et al. 2017)."""

from typing import Literal

import torch
from torch import Tensor

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.bounds import Rate
from kinfolk.core.rng import Rng
from kinfolk.models.model import Output
from kinfolk.objectives.objective import LATER, Loss, Objective, Vocabulary, side_loss, summed, token_losses


class SequenceToSequence(Objective, kind="sequence-to-sequence"):
    """The target's tokens from the source and the target so far; of a text, its second half from its first.

    `label_smoothing` takes that much from the gold token and spreads it "over" all tokens or the others only (Vaswani
    et al. 2017, section 5.4; Tensor2Tensor spreads over the others).
    """

    label_smoothing: Rate = 0.0
    over: Literal["all", "others"] = "others"

    @property
    def targets(self) -> str:
        return LATER

    @property
    def needs_encoder(self) -> bool:
        return True

    def prepare(self, batch: Batch, rng: Rng, vocabulary: Vocabulary) -> Batch:
        if batch.source is None:
            # the source ends where a causal model of the same window would start to be scored
            half = (batch.tokens.shape[1] - 1) // 2 + 1
            source, target = batch.tokens[:, :half], batch.tokens[:, half:]
            opening = torch.full_like(target[:, :1], vocabulary.start)
            return batch.replace(
                source=source, tokens=torch.cat([opening, target[:, :-1]], 1), targets=target, keep=None
            )
        keep = None if batch.keep is None else batch.keep[:, :-1]
        targets = batch.tokens[:, 1:]
        if batch.keep is not None:
            targets = targets.masked_fill(~batch.keep[:, 1:], IGNORE)
        return batch.replace(tokens=batch.tokens[:, :-1], keep=keep, targets=targets)

    def loss(self, output: Output, batch: Batch) -> Loss:
        assert batch.targets is not None
        total = output.head.loss(output.hidden, batch.targets, self.label_smoothing, self.over)
        return Loss(total, (batch.targets != IGNORE).sum(), side_loss(output))

    def measure(self, output: Output, batch: Batch) -> dict[str, tuple[Tensor, Tensor]]:
        name = "continuation" if batch.keep is None else "target-token"
        return {name: summed(*token_losses(output, batch))}
