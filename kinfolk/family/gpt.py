"""GPT and GPT-2: decoders that predict the next token."""

from kinfolk.family.assembly import pre_norm, self_block, stack
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.init import Normal
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.positions.position import Learned
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.model import Model
from kinfolk.objectives.causal import CausalLM
from kinfolk.ops.patterns.leaves import Causal
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import Cosine
from kinfolk.optim.training import Training


@relative(
    "gpt",
    parent="vanilla",
    paper="Radford et al. 2018, Improving Language Understanding by Generative Pre-Training",
    topology="decoder",
    causal=True,
    changes="the decoder alone, on running text, with learned positions and GELU",
)
def gpt(
    *,
    d_model: int = 768,
    n_layers: int = 12,
    n_heads: int = 12,
    d_ff: int = 3072,
    vocab_size: int = 40478,
    max_len: int = 512,
    dropout: float = 0.1,
) -> Recipe:
    """Section 4.1: a post-norm decoder of 12 layers, Adam at 2.5e-4 with 2,000 steps of warm-up and a cosine."""
    look = Attention(n_heads=n_heads, pattern=Causal(), dropout=dropout)
    think = Dense(d_ff=d_ff, activation="gelu-tanh")
    model = Model(
        d_model=d_model,
        vocab_size=vocab_size,
        max_len=max_len,
        dropout=dropout,
        embedding=Tokens(position=Learned()),
        decoder=stack(self_block(look, think, PostNorm()), n_layers),
        head=LMHead(),
        init=Normal(),
    )
    optimiser = AdamW(lr=2.5e-4, weight_decay=0.01)
    schedule = Cosine(warmup=2000, floor=0.0)
    training = Training(steps=100_000, batch_size=64, length=512, optimiser=optimiser, schedule=schedule)
    return Recipe(name="gpt", model=model, objective=CausalLM(), training=training)


@relative(
    "gpt2",
    parent="gpt",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    changes="pre-norm with a closing norm, residual branches start smaller with depth, twice the context",
)
def gpt2(*, vocab_size: int = 50257, max_len: int = 1024, **numbers: int | float) -> Recipe:
    """Section 2.3; the smallest of its four sizes."""
    recipe = gpt(vocab_size=vocab_size, max_len=max_len, **numbers)  # type: ignore[arg-type]
    model = pre_norm(recipe.model).replace(init=Normal(branches="scaled"))
    return recipe.replace(name="gpt2", model=model, training=recipe.training.replace(length=1024))
