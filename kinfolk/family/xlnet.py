"""XLNet: encoders pre-trained by permuted language modelling."""

from kinfolk.family.assembly import self_block, stack
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.init import Normal
from kinfolk.layers.mixers.two_stream import TwoStreamAttention, XLSegments
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.model import Model
from kinfolk.objectives.permuted import PermutedLM
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay
from kinfolk.optim.training import Training


@relative(
    "xlnet",
    parent="transformer-xl",
    paper="Yang et al. 2019, XLNet: Generalized Autoregressive Pretraining, arXiv:1906.08237",
    topology="encoder",
    causal=False,
    changes="tokens are predicted in a random order by questions that see what comes before them in it",
)
def xlnet(
    *,
    d_model: int = 768,
    n_layers: int = 12,
    n_heads: int = 12,
    d_ff: int = 3072,
    vocab_size: int = 32000,
    max_len: int = 512,
    dropout: float = 0.1,
    memory: int = 0,
) -> Recipe:
    """Section 2 and appendix A.4, the base size; `memory` 0 means three quarters of `max_len`, 384 of 512.

    Rows are contiguous, so that each sees the memory of the one before.
    """
    norm = LayerNorm(eps=1e-12)
    look = TwoStreamAttention(
        n_heads=n_heads,
        position=XLSegments(biases="per-layer"),
        bias=False,
        dropout=dropout,
        memory=memory or max(1, max_len * 3 // 4),
    )
    model = Model(
        d_model=d_model,
        vocab_size=vocab_size,
        max_len=max_len,
        dropout=dropout,
        embedding=Tokens(),
        encoder=stack(self_block(look, Dense(d_ff=d_ff, activation="gelu"), PostNorm(norm=norm)), n_layers),
        head=LMHead(bias=True),
        init=Normal(),
    )
    training = Training(
        steps=500_000,
        batch_size=2048,
        length=512,
        order="contiguous",
        optimiser=AdamW(lr=4e-4, eps=1e-6, weight_decay=0.01),
        schedule=LinearDecay(warmup=40_000),
    )
    return Recipe(name="xlnet", model=model, objective=PermutedLM(), training=training)
