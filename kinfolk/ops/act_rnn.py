"""LSTM and GRU with adaptive computation time, token by token (Graves 2016).

The sequential part is many small products. They run without autograd, and the backward pass is written out: it goes
through all steps in reverse and makes the gradients of weights at its end, by one product each.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.device import full_precision
from kinfolk.ops.act import halt
from kinfolk.ops.rnn_cell import CELLS

STEPS_TOGETHER = 8
"""Steps that an accelerator makes for every token before it is asked whether they were enough."""


class Rules(NamedTuple):
    """Kind of cell ("lstm" or "gru"), and when it may halt."""

    cell: str
    eps: float
    max_steps: int


class CellWeights(NamedTuple):
    """Weights of a cell, gates in PyTorch's order (first-step flag, recurrent map, bias), and of its halting unit."""

    flag_G: Tensor
    state_GD: Tensor
    bias_G: Tensor
    unit_1D: Tensor
    unit_bias_1: Tensor


class Pondered(NamedTuple):
    """Output, number of steps and remainder of every token, and the final state."""

    y_BLD: Tensor
    steps_BL: Tensor
    rest_BL: Tensor
    s_BS: Tensor


def ponder(said_BLG: Tensor, s_BS: Tensor, keep_BL: Tensor, weights: CellWeights, rules: Rules) -> Pondered:
    r"""Run an RNN with adaptive computation time over tokens whose input projections are `said`.

    $$s^n = S(s^{n-1}, [x; n = 1]), \qquad h^n = \sigma(u \cdot s^n + b), \qquad s = \sum_{n \le N} w_n s^n$$

    with $s^0$ the state of the token before and $w$, $N$ of `ops.act` (Graves 2016, section 2). An LSTM's state is
    output and cell side by side. Where `keep` is false the state stays as it is. Cost: a product with the state's map
    for every step that is made; rows that have halted make none. Reference: `kinfolk.ops.naive.act_rnn`.
    """
    return Pondered(*_Ponder.apply(said_BLG, s_BS, keep_BL, rules, *weights))


class _Step(NamedTuple):
    """One step of pondering: its rows, their new states, gates, halting probabilities and weights, and which halted.

    `active` is None where all of its rows were still pondering.
    """

    rows: Tensor
    new: Tensor
    acts: Tensor
    chance: Tensor
    weight: Tensor
    halts: Tensor
    active: Tensor | None = None

    def of(self, n_rows: int) -> Any:
        """Return the index of its rows; all of them are a slice, which copies nothing."""
        return slice(None) if len(self.rows) == n_rows else self.rows


Think = Callable[[Tensor, Tensor, Tensor], list[_Step]]


def _think(said: Tensor, s: Tensor, keep: Tensor, weights: CellWeights, rules: Rules) -> list[_Step]:
    """Ponder over one token of every row that has one."""
    cell, d, steps = CELLS[rules.cell], weights.state_GD.shape[1], []
    rows = keep.nonzero()[:, 0]
    said = (said if len(rows) == len(said) else said[rows]) + weights.flag_G
    s = s if len(rows) == len(s) else s[rows]
    total = s.new_zeros(len(rows))
    for n in range(rules.max_steps):
        if not len(rows):
            break
        rec = torch.addmm(weights.bias_G, s[:, :d], weights.state_GD.T)
        s, acts = cell.forward(said, s, rec)
        chance = torch.addmv(weights.unit_bias_1, s[:, :d], weights.unit_1D[0]).sigmoid()
        weight, total, halts = halt(chance, total, rules.eps, n + 1 == rules.max_steps)
        steps.append(_Step(rows, s, acts, chance, weight, halts))
        # the input flag is 1 at the first step of a token and 0 at all others
        if n == 0:
            said = said - weights.flag_G
        on = (~halts).nonzero()[:, 0]
        if len(on) < len(rows):
            rows, s, total, said = rows[on], s[on], total[on], said[on]
    return steps


def _think_together(
    said: Tensor, s: Tensor, keep: Tensor, weights: CellWeights, rules: Rules, most: int
) -> list[_Step]:
    """Ponder over one token of every row for `most` steps; rows that have halted go on, with weights of 0."""
    cell, d, steps = CELLS[rules.cell], weights.state_GD.shape[1], []
    rows, active, total = torch.arange(len(s), device=s.device), keep, s.new_zeros(len(s))
    for n in range(most):
        rec = torch.addmm(weights.bias_G, s[:, :d], weights.state_GD.T)
        s, acts = cell.forward(said + weights.flag_G if n == 0 else said, s, rec)
        chance = torch.addmv(weights.unit_bias_1, s[:, :d], weights.unit_1D[0]).sigmoid()
        weight, total, halts = halt(chance, total, rules.eps, n + 1 == rules.max_steps)
        halts = halts & active
        steps.append(_Step(rows, s, acts, chance, weight * active, halts, active))
        active = active & ~halts
    return steps


class _Thoughts(NamedTuple):
    """Pondering over a sequence: states between tokens, the steps of each token, their number, and remainders."""

    carried: list[Tensor]
    made: list[list[_Step]]
    steps: Tensor
    rest: Tensor


def _read(think: Think, said: Tensor, s: Tensor, keep: Tensor) -> _Thoughts:
    """Ponder over all tokens, one after the other."""
    found = _Thoughts([s], [], torch.zeros_like(said[..., 0]), torch.zeros_like(said[..., 0]))
    for t in range(said.shape[1]):
        made = think(said[:, t], s, keep[:, t])
        # a padded token hands its state on; any other replaces it by the weighted sum of its steps
        mean = torch.where(keep[:, t, None], 0.0, s)
        for step in made:
            rows = step.of(len(s))
            mean[rows] += step.weight[:, None] * step.new
            found.steps[rows, t] += 1 if step.active is None else step.active
            found.rest[rows, t] += step.weight * step.halts
        s = mean
        found.made.append(made)
        found.carried.append(s)
    return found


def read_together(said: Tensor, s: Tensor, keep: Tensor, weights: CellWeights, rules: Rules) -> _Thoughts:
    """Ponder over all tokens with as many steps for each: for accelerators, which are asked once who is not through.

    To ask after every step who has halted would be a synchronisation each. So all make a few steps, and where these
    were too few for some token, everything is computed again with twice as many.
    """
    most = min(STEPS_TOGETHER, rules.max_steps)
    while True:
        found = _read(functools.partial(_think_together, weights=weights, rules=rules, most=most), said, s, keep)
        if most == rules.max_steps:
            return found
        last = [made[-1] for made in found.made]
        if not last or not bool(torch.stack([step.active & ~step.halts for step in last]).any()):  # type: ignore[operator]
            return found
        most = min(2 * most, rules.max_steps)


class _Ponder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, said: Tensor, s: Tensor, keep: Tensor, rules: Rules, *weights: Tensor) -> tuple[Tensor, ...]:
        of, d = CellWeights(*weights), weights[1].shape[1]
        with full_precision(said):
            if said.device.type == "cpu":
                found = _read(functools.partial(_think, weights=of, rules=rules), said, s, keep)
            else:
                found = read_together(said, s, keep, of, rules)
        carried, made, steps, rest = found
        ctx.rules, ctx.counts = rules, [len(one) for one in made]
        ctx.save_for_backward(keep, *weights, *carried, *(x for one in made for step in one for x in step))
        ctx.mark_non_differentiable(steps)
        return torch.stack([x[:, :d] for x in carried[1:]], 1), steps, rest, carried[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, _: Tensor, d_rest: Tensor, ds: Tensor) -> tuple[Any, ...]:
        saved = list(ctx.saved_tensors)
        n_tokens, keep, weights = len(ctx.counts), saved[0], CellWeights(*saved[1:6])
        carried, flat = saved[6 : 7 + n_tokens], saved[7 + n_tokens :]
        n_kept = len(_Step._fields)
        steps = [_Step(*flat[i : i + n_kept]) for i in range(0, len(flat), n_kept)]
        back = _Backward(weights, ctx.rules, (*dy.shape[:2], len(weights.flag_G)))
        d = dy.shape[2]
        for t in reversed(range(n_tokens)):
            ds = ds.clone()
            # the output of a token is the first d numbers of the state after it
            ds[:, :d] += dy[:, t]
            n = ctx.counts[t]
            made, steps = steps[len(steps) - n :], steps[: len(steps) - n]
            # padding handed its state on, and so its gradient
            ds = torch.where(keep[:, t, None], 0.0, ds) + back.token(t, made, carried[t], ds, d_rest[:, t])
        return back.d_said, ds, None, None, *back.weights()


class _Backward:
    """Backward pass: goes through the steps in reverse and gathers the factors of weight gradients."""

    def __init__(self, weights: CellWeights, rules: Rules, shape: tuple[int, ...]) -> None:
        self.of, self.cell = weights, CELLS[rules.cell]
        self.d_said = weights.flag_G.new_zeros(shape)
        self.d_flag = torch.zeros_like(weights.flag_G)
        self.d_rec: list[Tensor] = []
        self.states: list[Tensor] = []
        self.d_logit: list[Tensor] = []
        self.new: list[Tensor] = []

    def token(self, t: int, made: list[_Step], start: Tensor, d_mean: Tensor, d_rest: Tensor) -> Tensor:
        """Return the gradient of the state that a token began with."""
        d = self.of.state_GD.shape[1]
        ds, last = torch.zeros_like(start), torch.zeros_like(start[:, 0])
        for n in reversed(range(len(made))):
            rows, (_, new, acts, chance, weight, halts, active) = made[n].of(len(start)), made[n]
            old = start[rows] if n == 0 else made[n - 1].new
            # rows that halted in the step before did not make this one
            old = old if len(old) == len(new) else old[~made[n - 1].halts]
            d_sum = d_mean[rows]
            d_weight = (d_sum * new).sum(1) + d_rest[rows] * halts
            # the last step's weight is what the others leave
            last[rows] = torch.where(halts, d_weight, last[rows])
            # at the halting step itself the two are equal: its own chance has no gradient
            d_logit = (d_weight - last[rows]) * chance * (1 - chance)
            d_logit = d_logit if active is None else d_logit * active
            d_new = torch.addcmul(ds[rows], weight[:, None], d_sum)
            # the halting unit reads the output alone, the first d numbers of a state
            d_new[:, :d].addr_(d_logit, self.of.unit_1D[0])
            d_said, d_rec, d_old = self.cell.backward(d_new, old, new, acts)
            d_old[:, :d].addmm_(d_rec, self.of.state_GD)
            ds[rows] = d_old
            self.d_said[rows, t] += d_said
            if n == 0:
                self.d_flag += d_said.sum(0)
            self.d_rec.append(d_rec)
            self.states.append(old[:, :d])
            self.d_logit.append(d_logit)
            self.new.append(new[:, :d])
        return ds

    def weights(self) -> tuple[Tensor, ...]:
        """Return the gradients of the weights, in their order."""
        if not self.d_rec:
            return tuple(torch.zeros_like(weight) for weight in self.of)
        d_rec, d_logit = torch.cat(self.d_rec), torch.cat(self.d_logit)
        unit = (d_logit @ torch.cat(self.new))[None]
        return self.d_flag, d_rec.T @ torch.cat(self.states), d_rec.sum(0), unit, d_logit.sum()[None]
