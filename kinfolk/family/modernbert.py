"""ModernBERT: an encoder with the parts of decoders after 2022."""

from kinfolk.family.assembly import self_block, stack
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.heads.head import MaskedLMHead
from kinfolk.layers.init import Normal
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.norms.norm import LayerNorm, NoNorm
from kinfolk.layers.norms.normed import Normed
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.models.model import Model
from kinfolk.objectives.masked import MaskedLM
from kinfolk.ops.patterns.leaves import Full, Window
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import Cooldown
from kinfolk.optim.training import Training


@relative(
    "modernbert",
    parent="bert",
    paper="Warner et al. 2024, Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder, arXiv:2412.13663",
    topology="encoder",
    causal=False,
    changes="rotary positions, pre-norm, GeGLU, no biases; two layers with a window to one that sees everything; 30 % "
    "of the tokens are masked, no question about passages",
)
def modernbert(
    *,
    d_model: int = 768,
    n_layers: int = 22,
    n_heads: int = 12,
    d_ff: int = 1728,
    window: int = 0,
    vocab_size: int = 50368,
    max_len: int = 8192,
    dropout: float = 0.0,
) -> Recipe:
    """Section 2 and table 4: the base model.

    `window` is how far a local layer sees on each side; 0: max_len / 128 (64 of 8,192), at least 4. `d_ff` as in
    `llama` (1,728 is their 1,152). The embedding has a norm, so the first attention has none.
    """
    norm = LayerNorm(bias=False)
    look = Attention(n_heads=n_heads, bias=False, pattern=Full(), position=Rotary(base=160000.0, layout="halves"))
    side = window or max(4, max_len // 128)
    local = look.replace(pattern=Window(left=side, right=side), position=Rotary(base=10000.0, layout="halves"))
    think = Gated.at_equal_parameters(Dense(d_ff=d_ff), "gelu")
    blocks = tuple(self_block(local if layer % 3 else look, think, PreNorm(norm=norm)) for layer in range(n_layers))
    first = Block(parts=(look, Normed(part=think, norm=norm)), residual=PreNorm(norm=NoNorm()))
    model = Model(
        d_model=d_model,
        vocab_size=vocab_size,
        max_len=max_len,
        dropout=dropout,
        embedding=Tokens(norm=norm),
        encoder=stack(first, n_layers).replace(blocks=(first, *blocks[1:]), norm=norm),
        head=MaskedLMHead(norm=norm, bias=False),
        init=Normal(branches="scaled"),
    )
    training = Training(
        steps=400_000,
        batch_size=4608,
        length=1024,
        optimiser=AdamW(lr=8e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=1e-5),
        schedule=Cooldown(warmup=0.01),
    )
    return Recipe(name="modernbert", model=model, objective=MaskedLM(share=0.3), training=training)
