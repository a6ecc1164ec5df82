"""Delta rule of linear attention: DeltaNet, Gated DeltaNet, KDA, in WY form (Yang et al. 2024).

    S_t = (I - beta_t k_t k_t^T) diag(exp g_t) S_{t-1} + beta_t k_t v_t^T,    o_t = q_t^T S_t

DeltaNet has no decay, Gated DeltaNet one per head, Kimi Delta Attention one per channel. RWKV-7 generalises the rule:
what is removed and what is written need not be the same direction.
"""

from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import Tensors, chunk_scan, chunks_of, corrected_states, join, runs_of, split
from kinfolk.ops.decayed_scores import ChunkMasks, decayed_scores, decays, exclusive, n_scores, times, zero_padding
from kinfolk.ops.gated_linear_recurrence import empty_state

CHUNK = 64
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

    Cost: 6 L R K + L CHUNK (6 R + 4 K); memory: the inputs and R K for every SEVERAL chunks.
    Reference: `kinfolk.ops.naive.delta_rule`.
    """
    beta_BHL1, log_decay = (zero_padding(x, keep_BL) for x in (beta_BHL1, log_decay))

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        if group_BL is None and at.stop - at.start == 1:
            # decoding: the recurrence itself
            q, k, v, beta, g = inputs
            s = g.exp().mT * state[0]
            s = s + k.mT @ (beta * (v - k @ s))
            return q @ s, (s,)
        q, k, v, beta, g = (split(x, CHUNK) for x in inputs)
        masks = ChunkMasks.of(group_BL, at, CHUNK, q.device)
        log = g.cumsum(-2)
        last, decay = log[..., -1:, :], times(log.exp(), masks.read)
        beta_k = k * beta
        if log.shape[-1] == 1:
            kept = decays(log, log, masks.pair)
            removed, scores = (beta_k @ k.mT) * kept, (q @ k.mT) * kept
        else:
            removed, scores = (decayed_scores(x, k, log, log, masks.pair) for x in (beta_k, q))
        write = k * times((last - log).exp(), masks.write)
        rights, onward = (beta_k * -decay, v * beta), times(last.exp(), masks.carry).mT
        states, w, after = corrected_states(removed, rights, onward, write, None, state[0])
        return join(scores @ w + (q * decay) @ states), (after,)

    state_BHRK = empty_state(k_BHLR, v_BHLK) if state_BHRK is None else state_BHRK
    inputs = q_BHLR, k_BHLR, v_BHLK, beta_BHL1, log_decay
    out, (after,) = chunk_scan(step, inputs, (state_BHRK,), (), runs_of(v_BHLK.shape[2], CHUNK, SEVERAL))
    return out, after


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

    Cost: 8 L R K + L CHUNK (10 R + 8 K); memory: the inputs and R K for every SEVERAL chunks.
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
        read_log, earlier, last = exclusive(log), masks.pair.tril(-1), log[..., -1:, :]
        found = a * times(read_log.exp(), masks.read), decayed_scores(a, k, read_log, log, earlier) @ v
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
    within = 4.0 * width * n_scores(chunks, by_channel) + (2.0 * width + 4.0 * d_value) * n_scores(chunks, False)
    return within / length + 6.0 * width * d_value, len(runs_of(length, CHUNK, SEVERAL))


def general_work(length: int, width: int, d_value: int) -> tuple[float, int]:
    """Return the same under `generalised_delta_rule`."""
    chunks = chunks_of(length, CHUNK)
    within = 8.0 * width * n_scores(chunks, True) + (2.0 * width + 8.0 * d_value) * n_scores(chunks, False)
    return within / length + 8.0 * width * d_value, len(runs_of(length, CHUNK, SEVERAL))
