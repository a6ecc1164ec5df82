"""Delta rule of linear attention: DeltaNet, Gated DeltaNet, KDA, in WY form (Yang et al. 2024).

    S_t = (I - beta_t k_t k_t^T) diag(exp g_t) S_{t-1} + beta_t k_t v_t^T,    o_t = q_t^T S_t

DeltaNet has no decay, Gated DeltaNet one per head, Kimi Delta Attention one per channel. RWKV-7 generalises the rule:
what is removed and what is written need not be the same direction.
"""

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped
from kinfolk.ops.chunk_scan import Tensors, chunk_scan, chunks_of
from kinfolk.ops.decayed_scores import Borders, decayed_scores, exclusive, n_scores, zero_padding
from kinfolk.ops.gated_linear_recurrence import empty_state

CHUNK = 64
"""Positions whose corrections are solved for together."""


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

    Cost: 6 L R K + L CHUNK (4 R + 3 K); memory: the inputs and R K for every CHUNK.
    Reference: `kinfolk.ops.naive.delta_rule`.
    """
    beta_BHL1, log_decay = (zero_padding(x, keep_BL) for x in (beta_BHL1, log_decay))
    borders = Borders(group_BL, CHUNK)

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        (s,), (q, k, v, beta, g) = state, inputs
        masks = borders.masks(at, q.device)
        log = g.cumsum(-2)
        decay = log.exp()
        removed = decayed_scores(k, k, log, log, masks.pair.tril(-1)) * beta
        w = _solve(removed, beta * (v - masks.reading(k * decay) @ s))
        out = decayed_scores(q, k, log, log, masks.pair) @ w + masks.reading(q * decay) @ s
        last = log[..., -1:, :]
        return out, (masks.carrying(last.exp().mT * s) + masks.writing(k * (last - log).exp()).mT @ w,)

    state_BHRK = empty_state(k_BHLR, v_BHLK) if state_BHRK is None else state_BHRK
    inputs = q_BHLR, k_BHLR, v_BHLK, beta_BHL1, log_decay
    out, (after,) = chunk_scan(step, inputs, (state_BHRK,), (), CHUNK)
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

    Cost: 8 L R K + L CHUNK (8 R + 7 K); memory: the inputs and R K for every CHUNK.
    Reference: `kinfolk.ops.naive.delta_rule`.
    """
    a, b = removed
    k_BHLR, b, g = (zero_padding(x, keep_BL) for x in (k_BHLR, b, log_decay_BHLR))
    borders = Borders(group_BL, CHUNK)

    def step(state: Tensors, inputs: Tensors, weights: Tensors, at: slice) -> tuple[Tensor, Tensors]:
        (s,), (q, k, v, a, b, g) = state, inputs
        masks = borders.masks(at, q.device)
        log = g.cumsum(-2)
        read_log, earlier = exclusive(log), masks.pair.tril(-1)
        seen = decayed_scores(a, k, read_log, log, earlier) @ v + masks.reading(a * read_log.exp()) @ s
        u = _solve(-decayed_scores(a, b, read_log, log, earlier), seen)
        out = decayed_scores(q, k, log, log, masks.pair) @ v + decayed_scores(q, b, log, log, masks.pair) @ u
        out = out + masks.reading(q * log.exp()) @ s
        last = log[..., -1:, :]
        onward = (last - log).exp()
        written = masks.writing(k * onward).mT @ v + masks.writing(b * onward).mT @ u
        return out, (masks.carrying(last.exp().mT * s) + written,)

    state_BHRK = empty_state(k_BHLR, v_BHLK) if state_BHRK is None else state_BHRK
    out, (after,) = chunk_scan(step, (q_BHLR, k_BHLR, v_BHLK, a, b, g), (state_BHRK,), (), CHUNK)
    return out, after


def work(length: int, width: int, d_value: int, by_channel: bool) -> tuple[float, int]:
    """Return the FLOPs of one head per token under `delta_rule`, and how many states the backward pass starts from."""
    chunks = chunks_of(length, CHUNK)
    within = 4.0 * width * n_scores(chunks, by_channel) + 3.0 * d_value * n_scores(chunks, False)
    return within / length + 6.0 * width * d_value, len(chunks)


def general_work(length: int, width: int, d_value: int) -> tuple[float, int]:
    """Return the same under `generalised_delta_rule`."""
    chunks = chunks_of(length, CHUNK)
    within = 8.0 * width * n_scores(chunks, True) + 7.0 * d_value * n_scores(chunks, False)
    return within / length + 8.0 * width * d_value, len(chunks)


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    """Return X with (I + lower) X = right; lower is strictly triangular."""
    return torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
