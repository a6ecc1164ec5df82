"""Gated linear attention: one chunked recurrence for RetNet, GLA, HGRN2, the SSD of Mamba-2 and RWKV-6.

    S_t = diag(exp g_t) S_{t-1} + k_t v_t^T,    o_t = q_t^T S_t

The log decay g_t is one number per head or one per channel of the keys, fixed or made from the input.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import Tensors, chunk_scan, chunks_of, join, precision, recurrent_states, runs_of, split
from kinfolk.ops.decayed_scores import (
    ChunkMasks,
    Decays,
    decayed_scores,
    exclusive,
    n_scores,
    since,
    summed_from_end,
    times,
    zero_padding,
)
from kinfolk.ops.linear_map import product

CHUNK = 64
"""Positions that attend to one another directly."""
SEVERAL = 8
"""Chunks that are computed side by side, except for their states."""


@shaped(out="BHLK")
def gated_linear_recurrence(
    q_BGLR: Tensor,
    k_BGLR: Tensor,
    v_BHLK: Tensor,
    log_decay: Tensor,
    state_BHRK: Tensor | None = None,
    keep_BL: Tensor | None = None,
    group_BL: Tensor | None = None,
    bonus_HR: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return $o_t = q_t^\top S_t$ with $S_t = \mathrm{diag}(e^{g_t}) S_{t-1} + k_t v_t^\top$, and the last $S$.

    `log_decay` $g \le 0$ is [B, H, L, 1] or [B, H, L, R] (Sun et al. 2023, RetNet, equation 6; Yang et al. 2024, GLA,
    equation 3; Dao and Gu 2024, Mamba-2, section 6). With a `bonus` $u$ a position reads the state before its own
    update, $o_t = q_t^\top (S_{t-1} + \mathrm{diag}(u) k_t v_t^\top)$ (Peng et al. 2024, RWKV-6). A padded position
    neither writes nor decays, and a document begins with an empty state. Queries and keys have as many heads as values,
    or one that all share, whose products are then computed once (if `log_decay` has one number per head).

    Cost: 4 L R K + 2 L CHUNK (R + K); memory: the inputs and R K for every SEVERAL chunks. Exponents are never
    positive, so any decay is stable. Reference: `kinfolk.ops.naive.gated_linear_recurrence`.
    """
    k_BGLR, log_decay = (zero_padding(x, keep_BL) for x in (k_BGLR, log_decay))

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        if group_BL is None and at.stop - at.start == 1:
            # decoding: the recurrence itself
            (q, k, v, g), new = inputs, inputs[1].mT @ inputs[2]
            after = g.exp().mT * state[0] + new
            return q @ (state[0] + weights[0].unsqueeze(-1) * new if weights else after), (after,)
        if by_head:
            return _forward(_Run.of(inputs, ChunkMasks.of(group_BL, at, CHUNK, v_BHLK.device)), state[0])
        q, k, v, g = (split(x, CHUNK) for x in inputs)
        masks = ChunkMasks.of(group_BL, at, CHUNK, q.device)
        log = g.cumsum(-2)
        read_log = exclusive(log) if weights else log
        last = log[..., -1:, :]
        written = (k * times((last - log).exp(), masks.write)).mT @ v
        states, after = recurrent_states(times(last.exp(), masks.carry).mT, written, state[0])
        # with a bonus the position itself is added apart, before it decays
        pair = masks.pair.tril(-1) if weights else masks.pair
        out = decayed_scores(q, k, read_log, log, pair) @ v
        out = out + (q * times(read_log.exp(), masks.read)) @ states
        if weights:
            out = out + (q * weights[0].unsqueeze(-2) * k).sum(-1, keepdim=True) * v
        return join(out), (after,)

    def pull(state: Tensors, inputs: Tensors, at: slice, d_out: Tensor, d_after: Tensors) -> Tensors:
        run = _Run.of(inputs, ChunkMasks.of(group_BL, at, CHUNK, v_BHLK.device))
        return _backward(run, state[0], d_out, d_after[0])

    by_head = log_decay.shape[-1] == 1 and bonus_HR is None
    state_BHRK = empty_state(k_BGLR, v_BHLK) if state_BHRK is None else state_BHRK
    weights = () if bonus_HR is None else (bonus_HR,)
    inputs, runs = (q_BGLR, k_BGLR, v_BHLK, log_decay), runs_of(v_BHLK.shape[2], CHUNK, SEVERAL)
    out, (after,) = chunk_scan(step, inputs, (state_BHRK,), weights, runs, pull if by_head else None)
    return out, after


def empty_state(k_BGLR: Tensor, v_BHLK: Tensor) -> Tensor:
    """Return the state before the first position."""
    return v_BHLK.new_zeros(*v_BHLK.shape[:2], k_BGLR.shape[3], v_BHLK.shape[3], dtype=precision(v_BHLK))


def work(length: int, width: int, d_value: int, by_channel: bool, sharing: int = 1) -> tuple[float, int]:
    """Return the FLOPs of one head per token, and how many states the backward pass starts from.

    `sharing` heads of values have one head of queries and keys.
    """
    chunks = chunks_of(length, CHUNK)
    within = 2.0 * (n_scores(chunks, by_channel) * width / sharing + n_scores(chunks, False) * d_value) / length
    return within + 4.0 * width * d_value, len(runs_of(length, CHUNK, SEVERAL))


class _Run(NamedTuple):
    """A run of chunks under one decay per head, all but values as [n, ...]; `kept`, `read`, `write` and `carry` say how
    far a chunk has decayed between pairs, since its beginning, until its end, and altogether."""

    q_nBGcR: Tensor
    k_nBGcR: Tensor
    v_BHLK: Tensor
    kept: Tensor
    read: Tensor
    write: Tensor
    carry: Tensor

    @classmethod
    def of(cls, inputs: Tensors, masks: ChunkMasks) -> "_Run":
        q, k, g = (split(x, CHUNK) for x in (inputs[0], inputs[1], inputs[3]))
        return cls(q, k, inputs[2], *Decays.of(g, masks))

    def chunks(self) -> Iterator[tuple[int, slice]]:
        size = self.q_nBGcR.shape[-2]
        yield from enumerate(slice(i * size, (i + 1) * size) for i in range(len(self.kept)))

    def written(self, n: int, v_BHcK: Tensor, state: Tensor) -> Tensor:
        """Return the state after a chunk."""
        return _by_heads(self.k_nBGcR[n].mT, v_BHcK * self.write[n]).addcmul_(self.carry[n], state)


def _forward(run: _Run, state: Tensor) -> tuple[Tensor, Tensors]:
    """Return the output of a run, and the state after it."""
    scores, v = (run.q_nBGcR @ run.k_nBGcR.mT) * run.kept, run.v_BHLK
    out = v.new_empty(v.shape[0], v.shape[2], v.shape[1], v.shape[3]).transpose(1, 2)
    for n, at in run.chunks():
        now = v[..., at, :]
        torch.addcmul(scores[n] @ now, _by_heads(run.q_nBGcR[n], state), run.read[n], out=out[..., at, :])
        state = run.written(n, now, state)
    return out, (state,)


def _backward(run: _Run, state: Tensor, d_out: Tensor, d_after: Tensor) -> Tensors:
    """Return the gradients of a run's inputs and of the state before it: all but its output is computed again."""
    states, v = [state], run.v_BHLK
    chunks = [*run.chunks()]
    for n, at in chunks[:-1]:
        states.append(run.written(n, v[..., at, :], states[-1]))
    d_q, d_k, d_log = torch.empty_like(run.q_nBGcR), torch.empty_like(run.k_nBGcR), torch.empty_like(run.read)
    d_v, together = torch.empty_like(v), d_q.shape[2] == 1
    for n, at in reversed(chunks):
        q, k, kept, d, now, before = (
            *(x[n] for x in (run.q_nBGcR, run.k_nBGcR, run.kept)),
            *(x[..., at, :] for x in (d_out, v)),
            states.pop(),
        )
        scores, d_scores = (q @ k.mT) * kept, d @ now.mT
        d_now = scores.mT @ d
        # all exponents are differences of log decays, and the gradient of an exponent is that of its power times it
        d_log[n] = since(scores.mul_(d_scores))
        d_scores = d_scores.mul_(kept).sum(1, keepdim=True) if together else d_scores.mul_(kept)
        d_read, found = d * run.read[n], _by_heads(k, d_after).mul_(run.write[n])
        d_log[n] += (_by_heads(q, before).mul_(d_read)).sum(-1, keepdim=True)
        d_ends = (found * now).sum(-1, keepdim=True)
        d_log[n] -= d_ends
        # what is written decays until the end of the chunk, whose sum is in all of these exponents
        d_log[n, ..., -1:, :] += d_ends.sum(-2, keepdim=True).addcmul_(run.carry[n], _dot(before, d_after))
        torch.add(d_now, found, out=d_v[..., at, :])
        torch.add(d_scores @ k, _over_heads(d_read, before, together), out=d_q[n])
        torch.add(d_scores.mT @ q, _over_heads(now * run.write[n], d_after, together), out=d_k[n])
        d_after = _by_heads(q.mT, d_read).addcmul_(run.carry[n], d_after)
    return join(d_q), join(d_k), d_v, join(summed_from_end(d_log)), d_after


def _by_heads(a_BGLR: Tensor, b_BHRK: Tensor) -> Tensor:
    """Return products of matrices; one that all heads share meets those of all heads side by side."""
    n_heads = b_BHRK.shape[1]
    if a_BGLR.shape[1] == n_heads:
        return a_BGLR @ b_BHRK
    # one wide product instead of one narrow one per head
    return _matmul(a_BGLR.squeeze(1), _wide(b_BHRK)).unflatten(-1, (n_heads, -1)).transpose(1, 2)


def _over_heads(a_BHLK: Tensor, b_BHRK: Tensor, together: bool) -> Tensor:
    """Return the products of a and b transposed, or one with their sum over heads."""
    if not together or a_BHLK.shape[1] == 1:
        return a_BHLK @ b_BHRK.mT
    return _matmul(_wide(a_BHLK), _wide(b_BHRK).mT).unsqueeze(1)


def _wide(x_BHRK: Tensor) -> Tensor:
    """Return the matrices of all heads side by side."""
    return x_BHRK.transpose(1, 2).flatten(2)


def _matmul(a_BLR: Tensor, b_BRK: Tensor) -> Tensor:
    if len(a_BLR) == 1:
        return product(a_BLR[0], b_BRK[0])[None]
    return torch.stack([product(a, b) for a, b in zip(a_BLR, b_BRK, strict=True)])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of products over the last two axes."""
    return (a * b).sum((-2, -1), keepdim=True)
