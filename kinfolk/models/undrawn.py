"""A model whose weights are not initialised, to be filled from a checkpoint."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from kinfolk.models.model import Model, Transformer


class _Undrawn(TorchFunctionMode):
    """Mode that skips weight initialisation: pages of memory that are not written to cost nothing."""

    DRAWS = frozenset((nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.DRAWS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def undrawn(spec: Model) -> Transformer:
    """Build a model whose parameters are still to come; what is computed (tables of sinusoids) is there."""
    with torch.random.fork_rng(devices=[]), _Undrawn():
        return Transformer(spec)
