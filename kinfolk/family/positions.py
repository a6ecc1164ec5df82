"""Position encodings (ALiBi, rotary, Shaw, …): relatives that exchange those of their parents."""

from typing import Any

from kinfolk.family.assembly import with_feed_forward, with_mixer
from kinfolk.family.bert import bert, masked_only
from kinfolk.family.gpt import gpt, gpt2
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.mixers.segment_attention import remembering
from kinfolk.layers.positions.position import NoPosition, Position
from kinfolk.layers.positions.relative import XL, ALiBi, Rotary, Shaw
from kinfolk.layers.positions.syntax import Syntax, TreeShaw
from kinfolk.ops.patterns.leaves import Causal, Local1D


def placed(recipe: Recipe, name: str, position: Position) -> Recipe:
    """Take positions out of the embedding and give every self-attention this one."""
    model = with_mixer(recipe.model, lambda look: look.replace(position=position))
    assert isinstance(model.embedding, Tokens)
    return recipe.replace(name=name, model=model.replace(embedding=model.embedding.replace(position=NoPosition())))


@relative(
    "shaw",
    parent="vanilla",
    paper="Shaw et al. 2018, Self-Attention with Relative Position Representations, arXiv:1803.02155",
    changes="a learned vector for each distance, added to keys and values, instead of sinusoids",
)
def shaw(*, clip: int = 16, **numbers: Any) -> Recipe:
    """Section 3.2."""
    return placed(vanilla(**numbers), "shaw", Shaw(clip=clip))


@relative(
    "syntax",
    parent="shaw",
    paper="Wang et al. 2019, Self-Attention with Structural Position Representations, arXiv:1909.00383",
    changes="the encoder also has absolute and relative positions of tokens in a dependency tree",
)
def syntax(*, clip: int = 16, **numbers: Any) -> Recipe:
    """Absolute and relative, both beside the sequence; the parse comes with the example, else it is a chain."""
    recipe = shaw(clip=clip, **numbers)
    parsed = with_mixer(recipe.model, lambda look: look.replace(position=TreeShaw(clip=clip)))
    assert isinstance(parsed.embedding, Tokens)
    embedding = parsed.embedding.replace(position=Syntax())
    return recipe.replace(name="syntax", model=recipe.model.replace(encoder=parsed.encoder, embedding=embedding))


@relative(
    "transformer-xl",
    parent="gpt",
    paper="Dai et al. 2019, Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context, arXiv:1901.02860",
    changes="segments see the memory of the segment before; positions are distances, in the scores of every layer",
)
def transformer_xl(
    *, d_model: int = 512, n_heads: int = 8, d_ff: int = 2048, segment: int = 0, memory: int = 0, **numbers: Any
) -> Recipe:
    """Section 3, at the size of its enwik8 model. 0 means an eighth of max_len for `segment`, as much for `memory`.

    A segment sees itself and up to `memory` tokens before it, which is a pattern; layer by layer the memory is the
    states of the layer below, so dependencies reach further with depth. Rows are contiguous, a segment in each step.
    """
    base = {"vocab_size": 204, "max_len": 4096} | numbers
    recipe = gpt(d_model=d_model, n_heads=n_heads, d_ff=d_ff, **base)
    segment = segment or max(1, recipe.model.max_len // 8)
    pattern = Causal() & Local1D(block=segment, memory=memory or segment)
    model = with_mixer(recipe.model, lambda look: remembering(look.replace(pattern=pattern, bias=False, dropout=0.0)))
    model = with_feed_forward(model, lambda think: think.replace(activation="relu"))
    model = model.replace(embedding=Tokens(scale="sqrt"))
    training = recipe.training.replace(length=segment, order="contiguous")
    return placed(recipe.replace(model=model, training=training), "transformer-xl", XL())


@relative(
    "roformer",
    parent="bert",
    paper="Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv:2104.09864",
    changes="queries and keys are turned by their positions",
)
def roformer(**numbers: Any) -> Recipe:
    """Section 3.2.2."""
    return placed(masked_only(bert(**numbers)), "roformer", Rotary())


@relative(
    "alibi",
    parent="gpt2",
    paper="Press et al. 2022, Train Short, Test Long, arXiv:2108.12409",
    changes="a linear bias of scores by distance, with a slope for each head; no other position encoding",
)
def alibi(**numbers: Any) -> Recipe:
    """Section 3."""
    return placed(gpt2(**numbers), "alibi", ALiBi())
