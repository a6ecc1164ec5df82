"""Product-key memory lookup: top-k of n x n keys from two sets of n (Lample et al. 2019)."""

import torch
from torch import Tensor

from kinfolk.core.shapes import shaped


@shaped(out=("LHk", "LHk"))
def best_pairs(q_LHK: Tensor, left_Hnh: Tensor, right_Hnh: Tensor, n_best: int) -> tuple[Tensor, Tensor]:
    r"""Return the `n_best` largest of all $q_1 \cdot l_i + q_2 \cdot r_j$ and where they are, $i\,n + j$.

    Lample et al. 2019, section 3.2: the best pairs are among the pairs of the best of each half, so k x k sums are made
    instead of n x n. Cost: 2 n K for each head. Reference: `kinfolk.ops.naive.product_keys`.
    """
    n = left_Hnh.shape[1]
    k = min(n_best, n)
    halves = q_LHK.chunk(2, -1)
    (left_LHk, i_LHk), (right_LHk, j_LHk) = (
        torch.einsum("lhk,hnk->lhn", half, keys).topk(k, dim=-1)
        for half, keys in zip(halves, (left_Hnh, right_Hnh), strict=True)
    )
    sums = (left_LHk[..., :, None] + right_LHk[..., None, :]).flatten(-2)
    score_LHk, place_LHk = sums.topk(min(n_best, sums.shape[-1]), dim=-1)
    index_LHk = i_LHk.gather(-1, place_LHk // k) * n + j_LHk.gather(-1, place_LHk % k)
    return score_LHk, index_LHk


@shaped(out="LD")
def product_key_memory(
    q_LHK: Tensor, left_Hnh: Tensor, right_Hnh: Tensor, values_VD: Tensor, n_best: int
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return $\sum_h \sum_{v \in \mathrm{best}} \mathrm{softmax}(s)_v\,\mathrm{value}_v$, the weights and the places.

    The softmax is over the best only, heads are added up, and a value found twice counts twice (Lample et al. 2019,
    equations 1 to 3). Reference: `kinfolk.ops.naive.product_keys`.
    """
    score_LHk, index_LHk = best_pairs(q_LHK, left_Hnh, right_Hnh, n_best)
    weight_LHk = score_LHk.softmax(-1)
    y_LD = torch.nn.functional.embedding_bag(
        index_LHk.flatten(1), values_VD, per_sample_weights=weight_LHk.flatten(1).to(values_VD.dtype), mode="sum"
    )
    return y_LD, weight_LHk, index_LHk
