"""Gated linear attention: one chunked recurrence for RetNet, GLA, HGRN2, the SSD of Mamba-2 and RWKV-6.

    S_t = diag(exp g_t) S_{t-1} + k_t v_t^T,    o_t = q_t^T S_t

The log decay g_t is one number per head or one per channel of the keys, fixed or made from the input.
"""

from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import Tensors, chunk_scan, chunks_of, precision
from kinfolk.ops.decayed_scores import Borders, decayed_scores, exclusive, n_scores, zero_padding

CHUNK = 64
"""Positions that attend to one another directly."""


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

    Cost: 4 L R K + 2 L CHUNK (R + K); memory: the inputs and R K for every CHUNK. Exponents are never positive, so any
    decay is stable. Reference: `kinfolk.ops.naive.gated_linear_recurrence`.
    """
    k_BGLR, log_decay = (zero_padding(x, keep_BL) for x in (k_BGLR, log_decay))
    borders = Borders(group_BL, CHUNK)

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        (s,), (q, k, v, g) = state, inputs
        masks = borders.masks(at, q.device)
        log = g.cumsum(-2)
        read_log = exclusive(log) if weights else log
        pair = masks.pair.tril(-1) if weights else masks.pair
        out = decayed_scores(q, k, read_log, log, pair) @ v + masks.reading(q * read_log.exp()) @ s
        if weights:
            out = out + (q * weights[0].unsqueeze(-2) * k).sum(-1, keepdim=True) * v
        last = log[..., -1:, :]
        return out, (masks.carrying(last.exp().mT * s) + masks.writing(k * (last - log).exp()).mT @ v,)

    state_BHRK = empty_state(k_BGLR, v_BHLK) if state_BHRK is None else state_BHRK
    weights = () if bonus_HR is None else (bonus_HR,)
    out, (after,) = chunk_scan(step, (q_BGLR, k_BGLR, v_BHLK, log_decay), (state_BHRK,), weights, CHUNK)
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
    return within + 4.0 * width * d_value, len(chunks)
