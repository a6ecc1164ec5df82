"""The actor: a model that reads one observation at a time.

It remembers as it does in training: with the memory that its layers carry from segment to segment, read in segments of
one observation. A model that carries nothing sees what was seen since its segment began.
"""

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.layers.heads.policy_head import PolicyHeadModule
from kinfolk.models.model import State, Transformer


class Actor:
    """Rows of observations in, what is said of actions and values out. `length` is that of a training segment.

    `memory` is where to begin; it is changed.
    """

    def __init__(self, model: Transformer, length: int, memory: State | None) -> None:
        assert isinstance(model.head, PolicyHeadModule)
        self.model, self.head, self.length, self.memory = model, model.head, length, memory
        self.prefix: list[tuple[Tensor, Tensor]] = []

    def look(self, observations: Tensor, began_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the head says of actions, [B, V], and the values, [B], and remember what was seen."""
        hidden_BD = self._run(observations, began_B)
        if self.memory is not None:
            self.memory.settle()
        else:
            self.prefix = [*self.prefix, (observations, began_B)] if len(self.prefix) + 1 < self.length else []
        return self.head.logits(hidden_BD), self.head.value(hidden_BD)

    def peek(self, observations: Tensor, began_B: Tensor) -> Tensor:
        """Return the values of what would be seen next, and remember nothing."""
        place = None if self.memory is None else self.memory.next_pos
        value_B = self.head.value(self._run(observations, began_B))
        if self.memory is not None and place is not None:
            # what the layers noted is overwritten by the next look
            self.memory.next_pos = place
        return value_B

    def _run(self, observations: Tensor, began_B: Tensor) -> Tensor:
        seen = [(observations, began_B)] if self.memory is not None else [*self.prefix, (observations, began_B)]
        tokens, began_BL = (torch.stack(parts, 1) for parts in zip(*seen, strict=True))
        batch = segment(tokens, began_BL).map(lambda x: x.to(self.head.weight.device))
        return self.model.run(batch, self.memory).hidden[:, -1]


def segment(tokens: Tensor, began_BL: Tensor) -> Batch:
    """Return a batch of observations in which no episode sees another; the first goes on with its segment memory."""
    document_BL = began_BL.long().cumsum(1)
    place_L = torch.arange(began_BL.shape[1])
    positions_BL = place_L - torch.where(began_BL, place_L, 0).cummax(1).values
    return Batch(index=torch.arange(len(tokens)), tokens=tokens, document=document_BL, positions=positions_BL)
