"""Gated linear attention: one chunked recurrence for RetNet, GLA, HGRN2, the SSD of Mamba-2 and RWKV-6.

    S_t = diag(exp g_t) S_{t-1} + k_t v_t^T,    o_t = q_t^T S_t

The log decay g_t is one number per head or one per channel of the keys, fixed or made from the input.
"""

from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import Tensors, chunk_scan, chunks_of, join, precision, recurrent_states, runs_of, split
from kinfolk.ops.decayed_scores import ChunkMasks, decayed_scores, exclusive, n_scores, times, zero_padding

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
        q, k, v, g = (split(x, CHUNK) for x in inputs)
        masks = ChunkMasks.of(group_BL, at, CHUNK, q.device)
        log = g.cumsum(-2)
        read_log = exclusive(log) if weights else log
        last, by_head = log[..., -1:, :], log.shape[-1] == 1
        reading, writing = times(read_log.exp(), masks.read), times((last - log).exp(), masks.write)
        # one decay per head may meet values as well as keys, and then all heads may share a product with the keys
        written = _by_heads(k.mT, v * writing) if by_head else (k * writing).mT @ v
        states, after = recurrent_states(times(last.exp(), masks.carry).mT, written, state[0])
        pair = masks.pair.tril(-1) if weights else masks.pair
        out = decayed_scores(q, k, read_log, log, pair) @ v
        out = out + (_by_heads(q, states) * reading if by_head else (q * reading) @ states)
        if weights:
            out = out + (q * weights[0].unsqueeze(-2) * k).sum(-1, keepdim=True) * v
        return join(out), (after,)

    state_BHRK = empty_state(k_BGLR, v_BHLK) if state_BHRK is None else state_BHRK
    weights = () if bonus_HR is None else (bonus_HR,)
    out, (after,) = chunk_scan(
        step, (q_BGLR, k_BGLR, v_BHLK, log_decay), (state_BHRK,), weights, runs_of(v_BHLK.shape[2], CHUNK, SEVERAL)
    )
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


def _by_heads(a_nBGLR: Tensor, b_nBHRK: Tensor) -> Tensor:
    """Return products of matrices; one that all heads share meets those of all heads side by side."""
    n_heads = b_nBHRK.shape[2]
    if a_nBGLR.shape[2] == n_heads:
        return a_nBGLR @ b_nBHRK
    wide_nBLK = a_nBGLR.squeeze(2) @ b_nBHRK.transpose(2, 3).flatten(3)
    return wide_nBLK.unflatten(-1, (n_heads, -1)).transpose(2, 3)
