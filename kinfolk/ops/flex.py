"""FlexAttention on CUDA under the same predicate and the same plan as the gathered blocks.

PyTorch's own planner materialises L x M; ours does not, so the block mask is made from our plan. On CPU, torch 2.13
has no backward pass for it, which is why the gathered path exists.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from kinfolk.ops.pattern import Pattern
from kinfolk.ops.plan import Extent, lay_out

FLEX_BLOCK = 128


def attend_flex(
    q_BHLK: Tensor, k_BHMK: Tensor, v_BHMK: Tensor, pattern: Pattern, start: int, scale: float | None
) -> Tensor:
    """Attend within a pattern by FlexAttention. Reference: `kinfolk.ops.naive.attend`."""
    mask = block_mask(pattern, q_BHLK.shape[2], k_BHMK.shape[2], start, str(q_BHLK.device))
    out = _compiled()(q_BHLK, k_BHMK, v_BHMK, block_mask=mask, scale=scale)
    assert isinstance(out, Tensor)
    return out


def mask_mod(pattern: Pattern, start: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
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
        count.to(device),
        index.to(device),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=mask_mod(pattern, start),
        seq_lengths=(n_q, n_k),
    )


@functools.cache
def _compiled() -> Callable[..., object]:
    return torch.compile(flex_attention)
