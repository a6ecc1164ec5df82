"""T5: text-to-text encoder-decoders, relative positions in buckets, span corruption (Raffel et al. 2020)."""

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.assembly import with_feed_forward, with_mixer, with_residual
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla_pre
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.init import FanIn
from kinfolk.layers.mixers.attention import CrossAttention
from kinfolk.layers.norms.norm import RMSNorm
from kinfolk.layers.part import FeedForward, Part
from kinfolk.layers.positions.relative import T5Buckets
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.models.depth.depth import Depth
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.objectives.denoise import T5_TABLE
from kinfolk.objectives.span import SpanCorruption
from kinfolk.optim.optimiser import Adafactor
from kinfolk.optim.schedule import FlatInverseSqrt


@relative(
    "t5",
    parent="vanilla-pre",
    year=2019,
    paper="Raffel et al. 2020, Exploring the Limits of Transfer Learning with T5, arXiv:1910.10683",
    changes="distances in buckets, no biases, undivided scores, RMSNorm; fills in the spans that a text has lost",
)
def t5(
    *,
    d_model: int = 768,
    n_layers: int = 12,
    n_heads: int = 12,
    d_ff: int = 3072,
    vocab_size: int = 32028,
    max_len: int = 512,
    dropout: float = 0.1,
    corruption: str = "random-spans",
) -> Recipe:
    """Sections 2.1 and 3.1: `vocab_size` is the data's, sentinels come after it; 568 tokens leave a source of 512.

    `corruption` is another objective of table 3, by its name there.
    """
    if corruption not in T5_TABLE:
        raise SpecError(f"corruption: unknown {corruption!r}{suggest(corruption, T5_TABLE)}")
    objective, norm = T5_TABLE[corruption], RMSNorm()
    numbers = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "max_len": max_len}
    # all seven have the same vocabulary, so that one may begin where another ends
    extra = max(other.extra_ids for other in T5_TABLE.values())
    recipe = vanilla_pre(**numbers, vocab_size=vocab_size + extra, dropout=dropout)
    model = with_mixer(recipe.model, lambda look: look.replace(bias=False, position=T5Buckets(), scale=1.0))
    model = with_feed_forward(_across(model, scale=1.0), _without_bias)
    model = with_residual(model, PreNorm(norm=norm), norm)
    training = recipe.training.replace(
        steps=524_288, batch_size=128, length=568, optimiser=Adafactor(lr=1.0), schedule=FlatInverseSqrt()
    )
    return recipe.replace(
        name="t5",
        model=model.replace(embedding=Tokens(), head=LMHead(scale="rsqrt"), init=FanIn()),
        objective=objective,
        training=training,
    )


@relative(
    "t5-v1-1",
    parent="t5",
    paper="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202; Roberts et al. 2020, the release T5.1.1",
    changes="feed-forwards are gated by a GELU, the output layer is its own",
)
def t5_v1_1(*, dropout: float = 0.0, **numbers: int | float) -> Recipe:
    """T5 as it was released again: no dropout in pre-training, and at as many weights as `d_ff` gives a dense one."""

    def gated(think: FeedForward) -> FeedForward:
        assert isinstance(think, Dense)
        return Gated.at_equal_parameters(think, "gelu-tanh")

    recipe = t5(dropout=dropout, **numbers)  # type: ignore[arg-type]
    model = with_feed_forward(recipe.model, gated).replace(head=LMHead(weights="untied"))
    return recipe.replace(name="t5-v1-1", model=model)


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
        model=_across(model).replace(embedding=Tokens(scale="sqrt")),
        objective=SpanCorruption(n_sentinels=n_sentinels),
        training=recipe.training.replace(
            steps=524_288, batch_size=128, length=512, optimiser=Adafactor(lr=1.0), schedule=FlatInverseSqrt()
        ),
    )


def _without_bias(think: FeedForward) -> FeedForward:
    return think.replace(bias=False)


def _across(model: Model, scale: float = 0.0) -> Model:
    """Take the biases out of the attention between the stacks, and divide its scores by another number."""

    def change(part: Part) -> Part:
        return part.replace(bias=False, scale=scale) if isinstance(part, CrossAttention) else part

    def inside(block: Block) -> Block:
        return block.replace(parts=tuple(map(change, block.parts)))

    decoder: Depth | None = model.decoder
    assert isinstance(decoder, Stack)
    return model.replace(decoder=decoder.replace(blocks=tuple(map(inside, decoder.blocks))))
