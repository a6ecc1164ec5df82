"""Sparse attention: relatives that are a parent with another attention pattern."""

import math
from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.assembly import with_mixers
from kinfolk.family.bert import bert, masked_only
from kinfolk.family.gpt import gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.ops.patterns.leaves import (
    Axial,
    BlockWindow,
    Causal,
    Global,
    Local1D,
    Local2D,
    Pattern,
    PerHead,
    RandomBlocks,
    SameBlock,
    Strided,
    Summary,
    Window,
)

COMBINATIONS = ("interleaved", "merged", "per-head")


def patterned(recipe: Recipe, name: str, *patterns: Pattern) -> Recipe:
    """Give a relative's layers these patterns in turn."""
    model = with_mixers(recipe.model, lambda look, layer: look.replace(pattern=patterns[layer % len(patterns)]))
    return recipe.replace(name=name, model=model)


def combined(recipe: Recipe, name: str, combination: str, patterns: tuple[Pattern, ...]) -> Recipe:
    """Use several patterns in turn over depth, as one union, or one per head (Child et al. 2019, section 4.3)."""
    if combination == "interleaved":
        return patterned(recipe, name, *patterns)
    if combination == "merged":
        union = patterns[0]
        for pattern in patterns[1:]:
            union = union | pattern
        return patterned(recipe, name, union)
    if combination == "per-head":
        return patterned(recipe, name, PerHead(patterns=patterns))
    raise SpecError(f"combination: unknown {combination!r}{suggest(combination, COMBINATIONS)}")


def near_root(length: int, least: int) -> int:
    """Return the power of two nearest to the square root of a sequence length, at least `least`.

    Attention to every stride-th position costs L^2 / stride, which is quadratic for a constant stride and L^1.5 for
    this one (Child et al. 2019, section 4.3).
    """
    return max(least, 2 ** round(math.log2(length) / 2))


@relative(
    "sparse-strided",
    parent="gpt2",
    paper="Child et al. 2019, Generating Long Sequences with Sparse Transformers, arXiv:1904.10509",
    changes="layers look at the last positions, or at every stride-th one, in turn",
)
def sparse_strided(*, stride: int = 0, combination: str = "interleaved", **numbers: Any) -> Recipe:
    """Section 4.3, strided; the local set has `stride` members, the query included, as in the released code.

    `stride` 0 means 128, or about the root of max_len where that is larger (from 32,768 on).
    """
    recipe = gpt2(**numbers)
    stride = stride or near_root(recipe.model.max_len, 128)
    sets = Window(left=stride - 1), Causal() & Strided(stride=stride)
    return combined(recipe, "sparse-strided", combination, sets)


@relative(
    "sparse-fixed",
    parent="gpt2",
    paper="Child et al. 2019, Generating Long Sequences with Sparse Transformers, arXiv:1904.10509",
    changes="layers look at their own block, or at the last columns of every block, in turn",
)
def sparse_fixed(*, stride: int = 0, width: int = 8, combination: str = "interleaved", **numbers: Any) -> Recipe:
    """Section 4.3, fixed; queries whose own block has no summary yet see themselves.

    `stride` 0 means 128, or about the root of max_len where that is larger (from 32,768 on).
    """
    recipe = gpt2(**numbers)
    stride = stride or near_root(recipe.model.max_len, 128)
    summaries = Causal() & (Summary(block=stride, width=width) | Window(left=0))
    return combined(recipe, "sparse-fixed", combination, (Causal() & SameBlock(size=stride), summaries))


@relative(
    "local",
    parent="gpt2",
    paper="Liu et al. 2018, Generating Wikipedia by Summarizing Long Sequences, arXiv:1801.10198",
    changes="a token sees the last window of tokens only",
)
def local(*, window: int = 256, **numbers: Any) -> Recipe:
    """A sliding window, the simplest of the patterns."""
    return patterned(gpt2(**numbers), "local", Window(left=window - 1))


@relative(
    "axial",
    parent="gpt2",
    paper="Ho et al. 2019, Axial Attention in Multidimensional Transformers, arXiv:1912.12180",
    changes="axial attention: tokens form a grid and attend to their own row and column",
)
def axial(*, width: int = 0, **numbers: Any) -> Recipe:
    """Section 3, rows and columns in one softmax, masked to the past.

    `width` 0 means 32, or about the root of max_len where that is larger (from 2,048 on).
    """
    recipe = gpt2(**numbers)
    return patterned(recipe, "axial", Causal() & Axial(width=width or near_root(recipe.model.max_len, 32)))


@relative(
    "image-1d",
    parent="gpt2",
    paper="Parmar et al. 2018, Image Transformer, arXiv:1802.05751",
    changes="pixels in raster order; a block of them sees itself and the block before",
)
def image_1d(*, block: int = 256, memory: int = 256, **numbers: Any) -> Recipe:
    """Section 3.2.1, one-dimensional local attention."""
    return patterned(gpt2(**numbers), "image-1d", Causal() & Local1D(block=block, memory=memory))


@relative(
    "image-2d",
    parent="image-1d",
    paper="Parmar et al. 2018, Image Transformer, arXiv:1802.05751",
    changes="pixels in block-raster order; a block sees itself, what lies above it and what lies left of it",
)
def image_2d(
    *, width: int = 96, block_height: int = 8, block_width: int = 16, above: int = 4, beside: int = 8, **numbers: Any
) -> Recipe:
    """Section 3.2.1, two-dimensional local attention; `width` counts channels: 32 pixels of three colours are 96."""
    pattern = Local2D(width=width, block_height=block_height, block_width=block_width, above=above, beside=beside)
    return patterned(gpt2(**numbers), "image-2d", pattern)


@relative(
    "longformer",
    parent="bert",
    paper="Beltagy et al. 2020, Longformer: The Long-Document Transformer, arXiv:2004.05150",
    changes="a window on both sides, wider at equal cost for dilated heads, and a few tokens that see everything",
)
def longformer(
    *, window: int = 512, n_global: int = 1, dilation: int = 1, max_len: int = 4096, **numbers: Any
) -> Recipe:
    """Section 3.1; global tokens share the projections of the others. `dilation` above 1 is for half of the heads."""
    near, everywhere = Window(left=window // 2, right=window // 2), Global(n=n_global)
    reach = window // 2 * dilation
    dilated = Window(left=reach, right=reach, step=dilation)
    pattern = PerHead(patterns=(near | everywhere, dilated | everywhere)) if dilation > 1 else near | everywhere
    return patterned(masked_only(bert(max_len=max_len, **numbers)), "longformer", pattern)


@relative(
    "bigbird",
    parent="bert",
    paper="Zaheer et al. 2020, Big Bird: Transformers for Longer Sequences, arXiv:2007.14062",
    changes="blocks see their neighbours, a few random blocks, and the first and last block, which see all",
)
def bigbird(*, block: int = 64, n_random: int = 3, max_len: int = 4096, **numbers: Any) -> Recipe:
    """Section 2, the internal construction: three blocks of window, two global, `n_random` drawn for all heads."""
    n_blocks = -(-max_len // block)
    everywhere = Global(n=block) | Global(n=block, start=(n_blocks - 1) * block)
    chance = RandomBlocks(block=block, n=min(n_random, n_blocks), among=n_blocks)
    recipe = masked_only(bert(max_len=max_len, **numbers))
    return patterned(recipe, "bigbird", BlockWindow(block=block) | everywhere | chance)
