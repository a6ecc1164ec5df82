"""FlexAttention on CUDA under the same predicate and the same plan as the gathered blocks.

PyTorch's own planner materialises L x M; ours does not, so the block mask is made from our plan. On CPU, torch 2.13
has no backward pass for it, which is why the gathered path exists.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from kinfolk.core.device import send
from kinfolk.ops.patterns.leaves import Pattern
from kinfolk.ops.patterns.plan import Extent, lay_out

FLEX_BLOCK = 128
NARROWEST = 16
"""The kernel takes no narrower heads; zeros behind the channels change no product."""
COMPILATIONS = 64
"""Patterns and shapes that are compiled for. PyTorch's own limit is 8, and beyond it FlexAttention runs in eager mode,
which holds L x M scores; beyond this one, gathered blocks take over."""


class CompilationLimitError(Exception):
    """Another pattern or shape would have to be compiled."""


def attend_flex(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, pattern: Pattern, start: int, scale: float | None
) -> Tensor:
    """Attend within a pattern by FlexAttention. Reference: `kinfolk.ops.naive.attend`."""
    mask = block_mask(pattern, q_BHLK.shape[2], k_BHMK.shape[2], start, str(q_BHLK.device))
    width, scale = q_BHLK.shape[3], q_BHLK.shape[3] ** -0.5 if scale is None else scale
    q_BHLK, k_BHMK, v_BHMK = (F.pad(x, (0, max(0, NARROWEST - width))) for x in (q_BHLK, k_BHMK, v_BHMK))
    out: object
    if torch.compiler.is_compiling():
        out = flex_attention(q_BHLK, k_BHMK, v_BHMK, block_mask=mask, scale=scale)
    else:
        try:
            with torch._dynamo.config.patch(recompile_limit=COMPILATIONS):
                out = _compiled()(q_BHLK, k_BHMK, v_BHMK, block_mask=mask, scale=scale)
        except FailOnRecompileLimitHit as error:
            raise CompilationLimitError(f"FlexAttention was compiled {COMPILATIONS} times") from error
    assert isinstance(out, Tensor)
    return out[..., :width]


def mask_mod(pattern: Pattern, start: int | Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Return the predicate in FlexAttention's form: indices in, boolean out."""

    def allows(batch: Tensor, head: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
        return pattern.allows(q_at + start, k_at)

    return allows


@functools.lru_cache(maxsize=64)
def block_mask(pattern: Pattern, n_q: int, n_k: int, start: int, device: str) -> BlockMask:
    """Turn our plan into FlexAttention's lists of key blocks per query block."""
    tiling = lay_out(pattern, Extent(n_q, n_k, start, FLEX_BLOCK, FLEX_BLOCK))
    n_rows, n_columns = -(-n_q // FLEX_BLOCK), -(-n_k // FLEX_BLOCK)
    count = torch.zeros(1, 1, n_rows, dtype=torch.int32)
    index = torch.zeros(1, 1, n_rows, n_columns, dtype=torch.int32)
    for group in tiling.groups:
        real = group.cols_rc >= 0
        count[0, 0, group.rows_r] = real.sum(1, dtype=torch.int32)
        index[0, 0, group.rows_r, : real.shape[1]] = group.cols_rc.clamp(min=0).to(torch.int32)
    return BlockMask.from_kv_blocks(
        send(count, torch.device(device)),
        send(index, torch.device(device)),
        BLOCK_SIZE=FLEX_BLOCK,
        # as a tensor it is an input of the kernel; a number would be compiled into it
        mask_mod=mask_mod(pattern, torch.tensor(start, device=device)),
        seq_lengths=(n_q, n_k),
    )


@functools.cache
def _compiled() -> Callable[..., object]:
    # a whole graph or an error: eager mode would hold all scores
    return torch.compile(flex_attention, fullgraph=True)
