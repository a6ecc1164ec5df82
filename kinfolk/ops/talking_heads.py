"""Talking-heads attention: linear maps across heads (Shazeer et al. 2020)."""

from torch import Tensor


def mix_heads(map_HH: Tensor, x_BHLM: Tensor) -> Tensor:
    r"""Return $y^h_{ij} = \sum_g P_{hg} x^g_{ij}$ (Shazeer et al. 2020). Any axes may follow H.

    Cost: H^2 products for each pair. Reference: `kinfolk.ops.naive.talking_heads.mix_heads`.
    """
    return (map_HH @ x_BHLM.flatten(2)).unflatten(2, x_BHLM.shape[2:])
