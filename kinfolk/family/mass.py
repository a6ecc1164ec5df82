"""MASS: an encoder-decoder pre-trained to predict one fragment of a text from the rest."""

from kinfolk.family.bart import two_sided
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.objectives.mass import MaskedFragment
from kinfolk.optim.optimiser import Adam
from kinfolk.optim.schedule import LinearDecay


@relative(
    "mass",
    parent="vanilla",
    paper="Song et al. 2019, MASS: Masked Sequence to Sequence Pre-training, arXiv:1905.02450",
    changes="learned positions and norms on each side, GELU; predicts a fragment that the encoder does not see",
)
def mass(
    *,
    d_model: int = 1024,
    n_layers: int = 6,
    n_heads: int = 8,
    d_ff: int = 4096,
    vocab_size: int = 60000,
    max_len: int = 512,
    dropout: float = 0.1,
) -> Recipe:
    """Section 4.1: half of a text is the fragment; the decoder sees it at the positions it has in the text."""
    numbers = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "max_len": max_len}
    recipe = vanilla(**numbers, vocab_size=vocab_size, dropout=dropout)
    training = recipe.training.replace(
        steps=500_000, batch_size=32, length=256, optimiser=Adam(lr=1e-4), schedule=LinearDecay(warmup=4000)
    )
    return recipe.replace(name="mass", model=two_sided(recipe.model), objective=MaskedFragment(), training=training)
