"""BART: an encoder-decoder pre-trained to denoise text."""

from kinfolk.family.assembly import with_feed_forward, with_residual
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.embeddings.two_sided import TwoSided
from kinfolk.layers.init import Normal
from kinfolk.layers.norms.norm import LayerNorm, NoNorm
from kinfolk.layers.part import FeedForward
from kinfolk.layers.positions.position import Learned
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.model import Model
from kinfolk.objectives.denoise import Denoising
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay


@relative(
    "bart",
    parent="vanilla",
    year=2019,
    paper="Lewis et al. 2020, BART: Denoising Sequence-to-Sequence Pre-training, arXiv:1910.13461",
    changes="learned positions and norms on each side, GELU; writes a text again from shuffled sentences with gaps",
)
def bart(
    *,
    d_model: int = 768,
    n_layers: int = 6,
    n_heads: int = 12,
    d_ff: int = 3072,
    vocab_size: int = 50265,
    max_len: int = 1024,
    dropout: float = 0.1,
) -> Recipe:
    """Section 2.1, the base model; noise as in section 5: gaps of Poisson length in 30 % of the words, any order."""
    numbers = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "max_len": max_len}
    recipe = vanilla(**numbers, vocab_size=vocab_size, dropout=dropout)
    optimiser = AdamW(lr=4e-4, weight_decay=0.01)
    training = recipe.training.replace(
        steps=500_000, batch_size=8000, length=512, optimiser=optimiser, schedule=LinearDecay(warmup=10_000), clip=0.1
    )
    return recipe.replace(name="bart", model=two_sided(recipe.model), objective=Denoising(), training=training)


def two_sided(model: Model) -> Model:
    """Give each side of an encoder-decoder learned positions and a norm behind its embedding, and GELU to both."""

    def smooth(think: FeedForward) -> FeedForward:
        return think.replace(activation="gelu")

    model = with_feed_forward(with_residual(model, PostNorm(), NoNorm()), smooth)
    tokens = Tokens(position=Learned(), norm=LayerNorm())
    return model.replace(embedding=TwoSided(tokens=tokens), init=Normal())
