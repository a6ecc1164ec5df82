"""Put the weights of one model into another that has the same body."""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from kinfolk.core.errors import CheckpointError
from kinfolk.layers.adapters import is_added
from kinfolk.models.model import Transformer

SHOWN = 6
POOLERS = {
    "head.judge.hidden.weight": "head.hidden.weight",
    "head.judge.hidden.bias": "head.hidden.bias",
    "head.map.weight": "head.hidden.weight",
    "head.map.bias": "head.hidden.bias",
}
"""Name of the layer between the first state and its classes in pre-trained heads, and in ours."""


@dataclasses.dataclass(frozen=True)
class Moved:
    """What became of weights: names that were taken over, that are initialised, and that are dropped."""

    kept: tuple[str, ...]
    fresh: tuple[str, ...]
    left: tuple[str, ...]


@torch.no_grad()
def transplant(
    model: Transformer, weights: Mapping[str, Tensor], *, head: bool = False, fresh: tuple[str, ...] = ()
) -> Moved:
    """Fill a model with the weights of another; what it has more of keeps what was drawn.

    A larger vocabulary takes over the rows there are: new tokens come after the old ones. The head is initialised,
    but for the layer that pre-training left in it, unless `head` asks for all that fits. `fresh`: beginnings of names
    that may be missing or keep what was drawn. Anything else that is missing or misshapen is refused by name.
    """
    own = model.state_dict()
    source = {POOLERS.get(name, name): x for name, x in weights.items()} if not head else dict(weights)
    kept, begun, problems = [], [], []
    for name, x in own.items():
        # a map that something was put beside is whole inside of it
        old = source.get(name, source.get(name.replace(".whole.", ".")))
        of_head = name.startswith("head.")
        if of_head and not head and name not in POOLERS.values():
            old = None
        if name.startswith(fresh) or (old is None and (of_head or is_added(name) or ".layer_" in name)):
            begun.append(name)
        elif old is None:
            problems.append(f"missing {name}")
        elif old.shape == x.shape:
            x.copy_(old)
            kept.append(name)
        elif len(x) == model.spec.vocab_size and len(old) < len(x) and old.shape[1:] == x.shape[1:]:
            x[: len(old)] = old
            kept.append(name)
        elif of_head:
            begun.append(name)
        else:
            problems.append(f"{name} has shape {tuple(old.shape)}, and {tuple(x.shape)} is wanted")
    if problems:
        more = f"; and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise CheckpointError(f"the body of the model does not fit: {'; '.join(problems[:SHOWN])}{more}")
    left = sorted(set(source) - {name.replace(".whole.", ".") for name in own} - set(own))
    return Moved(tuple(kept), tuple(begun), tuple(left))
