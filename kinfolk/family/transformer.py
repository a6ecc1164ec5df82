"""The root of the family: the encoder-decoder of Vaswani et al. 2017, and its pre-norm form."""

from kinfolk.family.assembly import cross_block, pre_norm, self_block, stack
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.init import Xavier
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.positions.position import Sinusoid
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.model import Model
from kinfolk.objectives.sequence import SequenceToSequence
from kinfolk.ops.patterns.leaves import Causal
from kinfolk.optim.optimiser import Adam
from kinfolk.optim.schedule import InverseSqrt
from kinfolk.optim.training import Training


@relative(
    "vanilla",
    parent=None,
    paper="Vaswani et al. 2017, Attention Is All You Need, arXiv:1706.03762",
    topology="encoder-decoder",
    causal=True,
    changes="attention alone carries information between positions, in an encoder and a decoder",
)
def vanilla(
    *,
    d_model: int = 512,
    n_layers: int = 6,
    n_heads: int = 8,
    d_ff: int = 2048,
    vocab_size: int = 37000,
    max_len: int = 1024,
    dropout: float = 0.1,
) -> Recipe:
    """Sections 3 and 5: post-norm, sinusoids, one table for both sides and the output, 4,000 steps of warm-up."""
    look, think = Attention(n_heads=n_heads), Dense(d_ff=d_ff)
    back = look.replace(pattern=Causal())
    model = Model(
        d_model=d_model,
        vocab_size=vocab_size,
        max_len=max_len,
        dropout=dropout,
        embedding=Tokens(position=Sinusoid(), scale="sqrt"),
        encoder=stack(self_block(look, think, PostNorm()), n_layers),
        decoder=stack(cross_block(back, think, PostNorm()), n_layers),
        head=LMHead(),
        init=Xavier(),
    )
    training = Training(
        steps=100_000,
        batch_size=512,
        length=50,
        optimiser=Adam(),
        schedule=InverseSqrt(warmup=4000, d_model=d_model),
        clip=0.0,
    )
    objective = SequenceToSequence(label_smoothing=0.1)
    return Recipe(name="vanilla", model=model, objective=objective, training=training)


@relative(
    "vanilla-pre",
    parent="vanilla",
    paper="Vaswani et al. 2018, Tensor2Tensor, arXiv:1803.07416; Xiong et al. 2020, arXiv:2002.04745",
    changes="pre-norm: norms before each part, and one at the end of each stack",
)
def vanilla_pre(**numbers: int | float) -> Recipe:
    """The stream is never normalised, so gradients reach the first layer at any depth."""
    recipe = vanilla(**numbers)  # type: ignore[arg-type]
    return recipe.replace(name="vanilla-pre", model=pre_norm(recipe.model))
