"""Dependency trees: depth of tokens and distance between them (Wang et al. 2019)."""

import torch
from torch import Tensor

from kinfolk.core.annotations import DependencyTree
from kinfolk.core.errors import ShapeError


def grow(heads_BW: Tensor, words_BL: Tensor) -> DependencyTree:
    r"""Return depths and relations of tokens from the heads of their words (Wang et al. 2019).

    `heads_BW` holds the number of each word's head, -1 for a root, of which there may be several; `words_BL` the word
    that a token belongs to, so that pieces of a word share its place. A token outside the parse (-1) is a root of
    its own. $d_i$ is the number of edges to the root. Where one of two words lies on the path from the other to its
    root, the relation that replaces $j - i$ is $d_j - d_i$, elsewhere $\mathrm{sign}(j - i)(d_i + d_j)$. A chain from
    the left is the sequence itself. Heads that go round in a circle are refused.

    Cost: (depth of the tree) passes over the words, and some over the pairs.
    Reference: `kinfolk.ops.naive.dependency_tree`.
    """
    depth_BW, above_BWW = _ancestors(heads_BW)
    inside_BL, at_BL = words_BL >= 0, words_BL.clamp(min=0)
    depth_BL = depth_BW.gather(1, at_BL) * inside_BL
    path_BWW = above_BWW | above_BWW.mT
    example_B11 = torch.arange(len(words_BL), device=words_BL.device)[:, None, None]
    path_BLM = path_BWW[example_B11, at_BL[:, :, None], at_BL[:, None, :]]
    path_BLM &= inside_BL[:, :, None] & inside_BL[:, None, :]
    place = torch.arange(words_BL.shape[1], device=words_BL.device)
    side_LM = (place[None, :] - place[:, None]).sign()
    mine, other = depth_BL[:, :, None], depth_BL[:, None, :]
    return DependencyTree(depth_BL, torch.where(path_BLM, other - mine, side_LM * (mine + other)))


def _ancestors(heads_BW: Tensor) -> tuple[Tensor, Tensor]:
    """Return the depth of each word, and which words: itself and all of those."""
    n_words = heads_BW.shape[1]
    depth_BW = torch.zeros_like(heads_BW)
    above_BWW = torch.eye(n_words, dtype=torch.bool, device=heads_BW.device).repeat(len(heads_BW), 1, 1)
    at_BW = heads_BW
    # a path has fewer edges than there are words, unless it is a circle
    for _ in range(n_words):
        real_BW = at_BW >= 0
        if not bool(real_BW.any()):
            break
        depth_BW = depth_BW + real_BW
        here_BW1 = at_BW.clamp(min=0).unsqueeze(-1)
        # where no ancestor is left, the clamped index writes the mark of word 0 back as it was
        above_BWW.scatter_(2, here_BW1, above_BWW.gather(2, here_BW1) | real_BW.unsqueeze(-1))
        at_BW = torch.where(real_BW, heads_BW.gather(1, here_BW1[..., 0]), -1)
    if bool((at_BW >= 0).any()):
        raise ShapeError("heads: the words of a parse go round in a circle and reach no root")
    return depth_BW, above_BWW
