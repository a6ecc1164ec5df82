"""One step of an LSTM or a GRU for one example, straight from the equations."""

import torch
from torch import Tensor


def lstm(a_in: Tensor, a_state: Tensor, s: Tensor) -> Tensor:
    """The equations of an LSTM."""
    i, f, g, o = (a_in + a_state).chunk(4)
    _, c = s.chunk(2)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.cat([torch.sigmoid(o) * torch.tanh(c), c])


def gru(a_in: Tensor, a_state: Tensor, s: Tensor) -> Tensor:
    """The equations of a GRU."""
    (r, z, n), (r_s, z_s, n_s) = a_in.chunk(3), a_state.chunk(3)
    r, z = torch.sigmoid(r + r_s), torch.sigmoid(z + z_s)
    return (1 - z) * torch.tanh(n + r * n_s) + z * s


CELLS = {"lstm": lstm, "gru": gru}
