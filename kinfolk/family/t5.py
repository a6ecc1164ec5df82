"""The text-to-text body: an encoder-decoder told distances in buckets, that learns to fill in spans."""

from kinfolk.family.assembly import with_mixer
from kinfolk.family.recipe import Recipe
from kinfolk.family.transformer import vanilla_pre
from kinfolk.layers.attention import CrossAttention
from kinfolk.layers.embedding import Tokens
from kinfolk.layers.part import Part
from kinfolk.layers.relative import T5Buckets
from kinfolk.models.block import Block
from kinfolk.models.model import Model
from kinfolk.models.stack import Depth, Stack
from kinfolk.objectives.span import SpanCorruption


def text_to_text(
    *,
    d_model: int = 768,
    n_layers: int = 12,
    n_heads: int = 12,
    d_ff: int = 3072,
    vocab_size: int = 32028,
    max_len: int = 512,
    dropout: float = 0.0,
    n_sentinels: int = 100,
) -> Recipe:
    """Return the body that Narang et al. 2021 change, at the size of T5's base model (Raffel et al. 2020).

    Pre-norm with LayerNorm, ReLU, biases in feed-forwards and none in attention, one table of position biases for each
    stack, one embedding for both sides and the output. `vocab_size` is the data's; the sentinels come after it.
    """
    numbers = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "max_len": max_len}
    recipe = vanilla_pre(**numbers, vocab_size=vocab_size + n_sentinels, dropout=dropout)
    model = with_mixer(recipe.model, lambda look: look.replace(bias=False, position=T5Buckets()))
    return recipe.replace(
        name="text-to-text",
        model=_across_without_bias(model).replace(embedding=Tokens(scale="sqrt")),
        objective=SpanCorruption(n_sentinels=n_sentinels),
        training=recipe.training.replace(steps=524_288, batch_size=128, length=512),
    )


def _across_without_bias(model: Model) -> Model:
    def change(part: Part) -> Part:
        return part.replace(bias=False) if isinstance(part, CrossAttention) else part

    def inside(block: Block) -> Block:
        return block.replace(parts=tuple(map(change, block.parts)))

    decoder: Depth | None = model.decoder
    assert isinstance(decoder, Stack)
    return model.replace(decoder=decoder.replace(blocks=tuple(map(inside, decoder.blocks))))
