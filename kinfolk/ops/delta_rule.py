"""Delta rule of linear attention: DeltaNet, Gated DeltaNet, KDA, in WY form (Yang et al. 2024).

    S_t = (I - beta_t k_t k_t^T) diag(exp g_t) S_{t-1} + beta_t k_t v_t^T,    o_t = q_t^T S_t

DeltaNet has no decay, Gated DeltaNet one per head, Kimi Delta Attention one per channel. RWKV-7 generalises the rule:
it may remove along one direction and write along another.
"""

from typing import NamedTuple

from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import (
    Tensors,
    chunk_scan,
    chunks_of,
    correct,
    corrected_states,
    inverse_work,
    join,
    pull_corrections,
    runs_of,
    split,
)
from kinfolk.ops.decayed_scores import (
    ChunkMasks,
    Decays,
    decayed_scores,
    exclusive,
    n_scores,
    scores_by_channel,
    since,
    summed_from_end,
    times,
    zero_padding,
)
from kinfolk.ops.gated_linear_recurrence import empty_state

CHUNK = 32
"""Positions whose corrections are solved for together."""
SEVERAL = 8
"""Chunks that are computed side by side, except for their states."""


@shaped(out="BHLK")
def delta_rule(
    q_BHLR: Tensor,
    k_BHLR: Tensor,
    v_BHLK: Tensor,
    beta_BHL1: Tensor,
    log_decay: Tensor,
    state_BHRK: Tensor | None = None,
    keep_BL: Tensor | None = None,
    group_BL: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return $o_t = q_t^\top S_t$ under the gated delta rule, and the last $S$.

    $S_t = (I - \beta_t k_t k_t^\top)\,\mathrm{diag}(e^{g_t})\,S_{t-1} + \beta_t k_t v_t^\top$ (Yang et al. 2024b,
    DeltaNet; Yang et al. 2024a, Gated DeltaNet, equation 10; Kimi Team 2025, equation 1). `log_decay` $g \le 0$ is
    [B, H, L, 1] or [B, H, L, R]. Inside a chunk the written values $w_t = \beta_t (v_t - k_t^\top e^{g_t} S_{t-1})$
    solve a unit lower triangular system (the WY form). A padded position changes nothing, and a document begins with
    an empty state.

    Cost: 6 L R K + L CHUNK (4 R + 4 K + CHUNK); memory: the inputs and R K for every SEVERAL chunks.
    Reference: `kinfolk.ops.naive.delta_rule`.
    """
    # with a rate of 0 nothing is removed or written, with a log decay of 0 nothing decays
    beta_BHL1, log_decay = (zero_padding(x, keep_BL) for x in (beta_BHL1, log_decay))

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        if group_BL is None and at.stop - at.start == 1:
            # decoding: the recurrence itself
            q, k, v, beta, g = inputs
            s = g.exp().mT * state[0]
            s = s + k.mT @ (beta * (v - k @ s))
            return q @ s, (s,)
        if inputs[4].shape[-1] == 1:
            run, masks = _Run(*(split(x, CHUNK) for x in inputs)), ChunkMasks.of(group_BL, at, CHUNK, inputs[0].device)
            return _forward(run, masks, state[0])
        q, k, v, beta, g = (split(x, CHUNK) for x in inputs)
        masks = ChunkMasks.of(group_BL, at, CHUNK, q.device)
        # (I + L) w = beta v - beta k e^c S, with L the decayed products of beta k and k below the diagonal
        log = g.cumsum(-2)
        last, decay = log[..., -1:, :], times(log.exp(), masks.read)
        beta_k = k * beta
        removed, scores = scores_by_channel((beta_k, q), k, (log, log), masks.pair)
        write = k * times((last - log).exp(), masks.write)
        rights, onward = (beta_k * -decay, v * beta), times(last.exp(), masks.carry).mT
        states, w, after = corrected_states(removed, rights, onward, write, None, state[0])
        return join(scores @ w + (q * decay) @ states), (after,)

    def pull(state: Tensors, inputs: Tensors, at: slice, d_out: Tensor, d_after: Tensors) -> Tensors:
        run, masks = _Run(*(split(x, CHUNK) for x in inputs)), ChunkMasks.of(group_BL, at, CHUNK, inputs[0].device)
        *found, d_state = _backward(run, masks, state[0], split(d_out, CHUNK), d_after[0])
        return *(join(x) for x in found), d_state

    state_BHRK = empty_state(k_BHLR, v_BHLK) if state_BHRK is None else state_BHRK
    inputs, runs = (q_BHLR, k_BHLR, v_BHLK, beta_BHL1, log_decay), runs_of(v_BHLK.shape[2], CHUNK, SEVERAL)
    out, (after,) = chunk_scan(step, inputs, (state_BHRK,), (), runs, pull if log_decay.shape[-1] == 1 else None)
    return out, after


class _Run(NamedTuple):
    """The inputs of a run of chunks under one decay per head."""

    q_nBHcR: Tensor
    k_nBHcR: Tensor
    v_nBHcK: Tensor
    beta_nBHc1: Tensor
    log_decay_nBHc1: Tensor


def _forward(run: _Run, masks: ChunkMasks, state: Tensor) -> tuple[Tensor, Tensors]:
    """Return the output of a run, and the state after it."""
    q, k, v, beta, g = run
    kept, read, write, carry = Decays.of(g, masks)
    removed, scores = (k @ k.mT).mul_(kept).mul_(beta), (q @ k.mT).mul_(kept)
    made = correct(removed, (k * (beta * read).neg_(), v * beta), carry, k * write, None, state)
    out = (scores @ made.u).add_((q * read) @ made.states[:-1])
    # a copy, since a view would keep the states of all chunks
    return join(out), (made.states[-1].clone(),)


def _backward(run: _Run, masks: ChunkMasks, state: Tensor, d_out: Tensor, d_after: Tensor) -> Tensors:
    """Return the gradients of a run's inputs and of the state before it: all but its output is computed again."""
    q, k, v, beta, g = run
    kept, read, write, carry = Decays.of(g, masks)
    found, scores = (k @ k.mT).mul_(kept), (q @ k.mT).mul_(kept)
    minus_beta, removed, written = (beta * read).neg_(), found * beta, k * write
    f = k * minus_beta
    made = correct(removed, (f, v * beta), carry, written, None, state)
    d_scores, d_reading = d_out @ made.u.mT, d_out @ made.states[:-1].mT
    d_made = (q * read).mT @ d_out, scores.mT @ d_out, d_after
    d_removed, d_f, d_r, d_carry, d_written, _, d_state = pull_corrections(made, f, carry, written, d_made)
    d_found = found.mul_(d_removed)
    d_beta = d_found.sum(-1, keepdim=True).add_((d_r * v).sum(-1, keepdim=True))
    # all exponents are differences of log decays, and the gradient of an exponent is that of its power times it
    d_log = since(d_found.mul_(beta).add_(scores.mul_(d_scores)))
    d_scores.mul_(kept)
    d_pairs = d_removed.mul_(kept).mul_(beta)
    d_q = (d_scores @ k).add_(d_reading * read)
    # k is on both sides of the products that L is made of
    d_k = ((d_pairs + d_pairs.mT) @ k).add_(d_scores.mT @ q).addcmul_(d_f, minus_beta).addcmul_(d_written, write)
    d_f_k = d_f.mul_(k).sum(-1, keepdim=True)
    d_beta.addcmul_(d_f_k, read, value=-1.0)
    d_log.add_(d_reading.mul_(q).sum(-1, keepdim=True).mul_(read)).addcmul_(d_f_k, minus_beta)
    d_ends = d_written.mul_(written).sum(-1, keepdim=True)
    d_log.sub_(d_ends)
    # what is written decays until the end of the chunk, whose sum is in all of these exponents
    d_log[..., -1:, :] += d_ends.sum(-2, keepdim=True).addcmul_(d_carry, carry)
    return d_q, d_k, d_r.mul_(beta), d_beta, summed_from_end(d_log), d_state


@shaped(out="BHLK")
def generalised_delta_rule(
    q_BHLR: Tensor,
    k_BHLR: Tensor,
    v_BHLK: Tensor,
    removed: tuple[Tensor, Tensor],
    log_decay_BHLR: Tensor,
    state_BHRK: Tensor | None = None,
    keep_BL: Tensor | None = None,
    group_BL: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return $o_t = q_t^\top S_t$ under the generalised delta rule, and the last $S$.

    $S_t = (\mathrm{diag}(e^{g_t}) + b_t a_t^\top) S_{t-1} + k_t v_t^\top$.
    `removed` is $(a, b)$, each [B, H, L, R] (Peng et al. 2025, RWKV-7, equation 17). With $a = e^{g} k$,
    $b = -\beta k$ and $\beta k$ in the place of $k$ it is `delta_rule`. Padding and documents as there.

    Cost: 8 L R K + L CHUNK (8 R + 8 K + CHUNK); memory: the inputs and R K for every SEVERAL chunks.
    Reference: `kinfolk.ops.naive.delta_rule`.
    """
    a, b = removed
    k_BHLR, b, g = (zero_padding(x, keep_BL) for x in (k_BHLR, b, log_decay_BHLR))

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        if group_BL is None and at.stop - at.start == 1:
            q, k, v, a, b, g = inputs
            s = g.exp().mT * state[0] + b.mT @ (a @ state[0]) + k.mT @ v
            return q @ s, (s,)
        q, k, v, a, b, g = (split(x, CHUNK) for x in inputs)
        masks = ChunkMasks.of(group_BL, at, CHUNK, q.device)
        log = g.cumsum(-2)
        # a reads the state before its position decays: sums of log decays up to the position before
        read_log, earlier, last = exclusive(log), masks.pair.tril(-1), log[..., -1:, :]
        found = a * times(read_log.exp(), masks.read), decayed_scores(a, k, read_log, log, earlier) @ v
        # u_t = a_t S_(t-1), to which earlier positions of the chunk add what they removed: (I + L) u = found
        lower = -decayed_scores(a, b, read_log, log, earlier)
        onward, carry = times((last - log).exp(), masks.write), times(last.exp(), masks.carry).mT
        states, u, after = corrected_states(lower, found, carry, b * onward, (k * onward).mT @ v, state[0])
        out = decayed_scores(q, k, log, log, masks.pair) @ v + decayed_scores(q, b, log, log, masks.pair) @ u
        return join(out + (q * times(log.exp(), masks.read)) @ states), (after,)

    state_BHRK = empty_state(k_BHLR, v_BHLK) if state_BHRK is None else state_BHRK
    out, (after,) = chunk_scan(
        step, (q_BHLR, k_BHLR, v_BHLK, a, b, g), (state_BHRK,), (), runs_of(v_BHLK.shape[2], CHUNK, SEVERAL)
    )
    return out, after


def work(length: int, width: int, d_value: int, by_channel: bool) -> tuple[float, int]:
    """Return the FLOPs of one head per token under `delta_rule`, and how many states the backward pass starts from."""
    chunks = chunks_of(length, CHUNK)
    within = 4.0 * width * n_scores(chunks, by_channel) + 4.0 * d_value * n_scores(chunks, False) + _inverses(chunks)
    return within / length + 6.0 * width * d_value, len(runs_of(length, CHUNK, SEVERAL))


def general_work(length: int, width: int, d_value: int) -> tuple[float, int]:
    """Return the same under `generalised_delta_rule`."""
    chunks = chunks_of(length, CHUNK)
    within = 8.0 * width * n_scores(chunks, True) + 8.0 * d_value * n_scores(chunks, False) + _inverses(chunks)
    return within / length + 8.0 * width * d_value, len(runs_of(length, CHUNK, SEVERAL))


def _inverses(chunks: list[slice]) -> float:
    """Return the FLOPs of the triangular inverses of one head's chunks."""
    return float(sum(inverse_work(at.stop - at.start) for at in chunks))
