"""Recurrent layers as operators of ONNX, which read any number of tokens; traced, they would be unrolled.

ONNX orders the gates of an LSTM input, output, forget, cell, where PyTorch has input, forget, cell, output; those of a
GRU update, reset, new, where PyTorch has reset, update, new.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.layers.mixers.rnn import RecurrentModule

ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}


def as_operators(model: nn.Module) -> None:
    """Let every recurrent layer of a model be an operator of its own weights."""
    for part in model.modules():
        if isinstance(part, RecurrentModule):
            cell = part.cell
            object.__setattr__(cell, "forward", functools.partial(_read, cell))


def _read(cell: nn.RNNBase, x_BLD: Tensor, start: Any = None) -> tuple[Tensor, Any]:
    """Read tokens from a state on, as the cell itself does."""
    kind, width, n = type(cell).__name__, cell.hidden_size, 2 if cell.bidirectional else 1
    n_states = 2 if kind == "LSTM" else 1
    states = [None] * n_states if start is None else start if isinstance(start, tuple) else (start,)
    attributes: dict[str, Any] = {"hidden_size": width, "direction": "bidirectional" if n == 2 else "forward"}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    bias = torch.cat([_weights(cell, "bias_ih"), _weights(cell, "bias_hh")], 1)
    batch, length = x_BLD.shape[0], x_BLD.shape[1]
    y_LnBD, *end = torch.onnx.ops.symbolic_multi_out(
        kind,
        [x_BLD.transpose(0, 1), _weights(cell, "weight_ih"), _weights(cell, "weight_hh"), bias, None, *states],
        attributes,
        dtypes=(x_BLD.dtype,) * (1 + n_states),
        shapes=((length, n, batch, width), *((n, batch, width),) * n_states),
        version=14,
    )
    return y_LnBD.permute(2, 0, 1, 3).flatten(2), tuple(end) if n_states == 2 else end[0]


def _weights(cell: nn.RNNBase, name: str) -> Tensor:
    """Return weights of both directions with their gates in the order of ONNX."""
    order, named = ORDER[type(cell).__name__], dict(cell.named_parameters())
    found = []
    for end in ["", "_reverse"] if cell.bidirectional else [""]:
        gates = named[f"{name}_l0{end}"].chunk(len(order))
        found.append(torch.cat([gates[i] for i in order]))
    return torch.stack(found)
