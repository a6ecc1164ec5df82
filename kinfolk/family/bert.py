"""Encoders that fill in what is hidden: BERT."""

from kinfolk.family.assembly import self_block, stack
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.attention import Attention
from kinfolk.layers.embedding import Tokens
from kinfolk.layers.feed_forward import Dense
from kinfolk.layers.head import MaskedLMHead
from kinfolk.layers.init import Normal
from kinfolk.layers.norm import LayerNorm
from kinfolk.layers.position import Learned
from kinfolk.layers.residual import PostNorm
from kinfolk.models.model import Model
from kinfolk.objectives.masked import MaskedLM
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import Linear
from kinfolk.optim.training import Training


@relative(
    "bert",
    parent="vanilla",
    year=2018,
    paper="Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers, arXiv:1810.04805",
    topology="encoder",
    causal=False,
    changes="the encoder alone, filling in masked tokens from both sides; learned positions, segments, GELU",
)
def bert(
    *,
    d_model: int = 768,
    n_layers: int = 12,
    n_heads: int = 12,
    d_ff: int = 3072,
    vocab_size: int = 30522,
    max_len: int = 512,
    dropout: float = 0.1,
) -> Recipe:
    """Section 3 and appendix A.2: post-norm, exact GELU, a norm after the summed embeddings, Adam at 1e-4."""
    norm = LayerNorm(eps=1e-12)
    look, think = Attention(n_heads=n_heads, dropout=dropout), Dense(d_ff=d_ff, activation="gelu")
    model = Model(
        d_model=d_model,
        vocab_size=vocab_size,
        max_len=max_len,
        dropout=dropout,
        embedding=Tokens(position=Learned(), norm=norm, n_segments=2),
        encoder=stack(self_block(look, think, PostNorm(norm=norm)), n_layers),
        head=MaskedLMHead(norm=norm),
        init=Normal(),
    )
    optimiser = AdamW(lr=1e-4, weight_decay=0.01)
    training = Training(
        steps=1_000_000, batch_size=256, length=512, optimiser=optimiser, schedule=Linear(warmup=10_000)
    )
    return Recipe(name="bert", model=model, objective=MaskedLM(), training=training)
