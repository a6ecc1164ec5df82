"""RNN with adaptive computation time, one example, one token and one step at a time."""

import torch
from torch import Tensor

from kinfolk.ops.naive import act as halting
from kinfolk.ops.naive.rnn_cell import CELLS


def ponder(
    said: Tensor, s: Tensor, keep: Tensor, weights: tuple[Tensor, ...], rules: tuple[str, float, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Outputs, steps, remainders and last states."""
    (flag, matrix, bias, unit, unit_bias), (cell, eps, most), d = weights, rules, weights[1].shape[1]
    rows = []
    for b in range(len(said)):
        state, outputs, steps, rests = s[b], [], [], []
        for t in range(said.shape[1]):
            count, left = 0, state.new_zeros(())
            if keep[b, t]:
                inner, chances, now = [], [], state
                for n in range(most):
                    now = CELLS[cell](said[b, t] + flag * (n == 0), matrix @ now[:d] + bias, now)
                    inner.append(now)
                    chances.append(torch.sigmoid(unit[0] @ now[:d] + unit_bias[0]))
                w = halting.weights(chances, eps)
                state = sum((w_n * s_n for w_n, s_n in zip(w, inner, strict=False)), torch.zeros_like(state))
                count, left = len(w), w[-1]
            outputs.append(state[:d])
            steps.append(count)
            rests.append(left)
        rows.append((torch.stack(outputs), torch.tensor(steps), torch.stack(rests), state))
    y, counts, rest, last = (torch.stack(x) for x in zip(*rows, strict=True))
    return y, counts, rest, last
