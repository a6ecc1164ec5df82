"""LLaMA and its relatives: decoders with pre-RMSNorm, SwiGLU, RoPE and grouped queries.

`d_ff` is the width of a dense feed-forward with as many parameters, as everywhere in the family; a gated one is 2/3 as
wide (21,504 is LLaMA 3's 14,336).
"""

from typing import Any

from kinfolk.family.assembly import self_block, stack, with_feed_forward, with_mixers, with_residual
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.init import Normal
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.softmax import Softcap
from kinfolk.layers.norms.norm import NoNorm, RMSNorm
from kinfolk.layers.norms.sandwich_norm import SandwichNorm
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.model import Model
from kinfolk.objectives.causal import CausalLM
from kinfolk.ops.patterns.leaves import Causal, Window
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import Cosine
from kinfolk.optim.training import Training


def rebased(model: Model, base: float) -> Model:
    """Give every rotary position another base."""
    position = Rotary(base=base, layout="halves")
    return with_mixers(model, lambda look, layer: look.replace(position=position))


def with_eps(model: Model, eps: float) -> Model:
    """Give every pre-norm RMSNorm another epsilon."""
    norm = RMSNorm(eps=eps)
    return with_residual(model, PreNorm(norm=norm), norm)


def key_heads(n_heads: int, group: int) -> int:
    """Return how many heads of keys are shared by `n_heads` heads of queries; a small model keeps at least two."""
    return max(1, n_heads // min(group, max(1, n_heads // 2)))


@relative(
    "llama",
    parent="gpt2",
    paper="Touvron et al. 2023, LLaMA: Open and Efficient Foundation Language Models, arXiv:2302.13971; "
    "Grattafiori et al. 2024, The Llama 3 Herd of Models, arXiv:2407.21783",
    topology="decoder",
    causal=True,
    changes="RMSNorm, SwiGLU, rotary positions, grouped-query attention, no biases, an untied output layer",
)
def llama(
    *,
    d_model: int = 4096,
    n_layers: int = 32,
    n_heads: int = 32,
    group: int = 4,
    d_ff: int = 21504,
    vocab_size: int = 128256,
    max_len: int = 8192,
    dropout: float = 0.0,
) -> Recipe:
    """Touvron et al. 2023, section 2.2, with the numbers of Llama 3 8B (Grattafiori et al. 2024, table 3)."""
    norm = RMSNorm(eps=1e-5)
    look = Attention(
        n_heads=n_heads,
        n_kv_heads=key_heads(n_heads, group),
        pattern=Causal(),
        position=Rotary(base=500000.0, layout="halves"),
        bias=False,
    )
    think = Gated.at_equal_parameters(Dense(d_ff=d_ff), "swish")
    model = Model(
        d_model=d_model,
        vocab_size=vocab_size,
        max_len=max_len,
        dropout=dropout,
        embedding=Tokens(),
        decoder=stack(self_block(look, think, PreNorm(norm=norm)), n_layers).replace(norm=norm),
        head=LMHead(weights="untied"),
        init=Normal(branches="scaled"),
    )
    optimiser = AdamW(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = Cosine(warmup=2000, floor=0.1)
    training = Training(steps=100_000, batch_size=64, length=2048, optimiser=optimiser, schedule=schedule)
    return Recipe(name="llama", model=model, objective=CausalLM(), training=training)


@relative(
    "mistral",
    parent="llama",
    paper="Jiang et al. 2023, Mistral 7B, arXiv:2310.06825",
    changes="every layer attends within a sliding window",
)
def mistral(*, window: int = 0, vocab_size: int = 32000, **numbers: Any) -> Recipe:
    """Section 2; `window` 0 means half of max_len (4,096 of 8,192)."""
    recipe = llama(vocab_size=vocab_size, **numbers)
    # a window of w tokens includes the query's own
    pattern = Causal() & Window(left=(window or recipe.model.max_len // 2) - 1)
    model = with_mixers(recipe.model, lambda look, layer: look.replace(pattern=pattern))
    return recipe.replace(name="mistral", model=rebased(model, 10000.0))


@relative(
    "qwen2",
    parent="llama",
    paper="Yang et al. 2024, Qwen2 Technical Report, arXiv:2407.10671",
    changes="biases on queries, keys and values",
)
def qwen2(
    *,
    d_model: int = 3584,
    n_layers: int = 28,
    n_heads: int = 28,
    group: int = 7,
    d_ff: int = 28416,
    vocab_size: int = 152064,
    max_len: int = 32768,
    **numbers: Any,
) -> Recipe:
    """Section 2.2 and table 1: the 7B model; its vocabulary is padded to 152,064 in the released weights."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "group": group, "d_ff": d_ff}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    model = with_mixers(recipe.model, lambda look, layer: look.replace(bias=True, out_bias=False))
    return recipe.replace(name="qwen2", model=with_eps(rebased(model, 1e6), 1e-6))


@relative(
    "qwen3",
    parent="llama",
    paper="Yang et al. 2025, Qwen3 Technical Report, arXiv:2505.09388",
    changes="QK-norm: an RMSNorm on the queries and keys of each head before they are rotated",
)
def qwen3(
    *,
    n_layers: int = 36,
    d_ff: int = 18432,
    vocab_size: int = 151936,
    max_len: int = 40960,
    **numbers: Any,
) -> Recipe:
    """Section 2 and table 1: the 8B model; d_ff 12,288 and max_len are those of the released configuration."""
    recipe = llama(n_layers=n_layers, d_ff=d_ff, vocab_size=vocab_size, max_len=max_len, **numbers)
    model = with_mixers(recipe.model, lambda look, layer: look.replace(qk_norm=RMSNorm()))
    return recipe.replace(name="qwen3", model=with_eps(rebased(model, 1e6), 1e-6))


@relative(
    "olmo2",
    parent="llama",
    paper="Team OLMo et al. 2024, 2 OLMo 2 Furious, arXiv:2501.00656",
    changes="norms behind attention and feed-forward, inside the residual branch, and QK-norm over all heads together",
)
def olmo2(
    *, group: int = 1, d_ff: int = 16512, vocab_size: int = 100352, max_len: int = 4096, **numbers: Any
) -> Recipe:
    """Section 2.1 with the numbers of the released 7B model."""
    recipe = llama(group=group, d_ff=d_ff, vocab_size=vocab_size, max_len=max_len, **numbers)
    norm = RMSNorm()
    model = with_residual(recipe.model, SandwichNorm(before=NoNorm(), after=norm), norm)
    model = with_mixers(model, lambda look, layer: look.replace(qk_norm=norm, qk_norm_over="heads"))
    return recipe.replace(name="olmo2", model=model)


@relative(
    "gemma3",
    parent="llama",
    paper="Gemma Team 2025, Gemma 3 Technical Report, arXiv:2503.19786",
    changes="five layers with a sliding window to one without, norms on both sides of every part, QK-norm, GeGLU",
)
def gemma3(
    *,
    d_model: int = 1152,
    n_layers: int = 26,
    n_heads: int = 4,
    d_ff: int = 10368,
    window: int = 0,
    every: int = 6,
    vocab_size: int = 262144,
    max_len: int = 32768,
    **numbers: Any,
) -> Recipe:
    """Section 2: the 1B model. `window` 0: max_len / 64 (512 of 32,768), at least 16; layer `every` sees everything.

    Heads of the published width are 256 wide, others d_model / n_heads.
    """
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    norm = RMSNorm(gain="one-plus")
    width = 256 if d_model == 1152 else d_model // n_heads
    whole = Rotary(base=1e6, layout="halves")
    local = Causal() & Window(left=(window or max(16, max_len // 64)) - 1)

    def look_of(look: Attention, layer: int) -> Attention:
        look = look.replace(qk_norm=norm, d_head=width, n_kv_heads=max(1, n_heads // 4))
        if (layer + 1) % every == 0:
            return look.replace(position=whole)
        return look.replace(pattern=local, position=Rotary(base=10000.0, layout="halves"))

    model = with_residual(recipe.model, SandwichNorm(before=norm, after=norm), norm)
    model = with_mixers(model, look_of)
    model = with_feed_forward(model, lambda think: think.replace(activation="gelu-tanh")).replace(
        embedding=Tokens(scale="sqrt"), head=LMHead()
    )
    return recipe.replace(name="gemma3", model=model)


@relative(
    "gemma2",
    parent="llama",
    paper="Gemma Team 2024, Gemma 2: Improving Open Language Models at a Practical Size, arXiv:2408.00118",
    changes="softcaps on attention scores and logits, a sliding window in every second layer, norms on both sides of "
    "every part, GeGLU",
)
def gemma2(
    *,
    d_model: int = 2304,
    n_layers: int = 26,
    n_heads: int = 8,
    d_ff: int = 13824,
    window: int = 0,
    vocab_size: int = 256000,
    max_len: int = 8192,
    **numbers: Any,
) -> Recipe:
    """Section 2 and table 1: the 2B model. `window` 0: max_len / 2 (4,096 of 8,192).

    Heads of the published width are 256 wide, others d_model / n_heads.
    """
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "group": 2}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    norm = RMSNorm(gain="one-plus")
    width = 256 if d_model == 2304 else d_model // n_heads
    local = Causal() & Window(left=(window or max_len // 2) - 1)

    def look_of(look: Attention, layer: int) -> Attention:
        look = look.replace(d_head=width, softmax=Softcap(cap=50.0), position=Rotary(base=10000.0, layout="halves"))
        return look if layer % 2 else look.replace(pattern=local)

    model = with_mixers(with_residual(recipe.model, SandwichNorm(before=norm, after=norm), norm), look_of)
    model = with_feed_forward(model, lambda think: think.replace(activation="gelu-tanh"))
    head = LMHead(softcap=30.0)
    return recipe.replace(name="gemma2", model=model.replace(embedding=Tokens(scale="sqrt"), head=head))


@relative(
    "smollm3",
    parent="llama",
    paper="Bakouch et al. 2025, SmolLM3: smol, multilingual, long-context reasoner; "
    "Yang et al. 2025, Rope to Nope and Back Again: A New Hybrid Attention Strategy, arXiv:2501.18795",
    changes="no positions in every fourth layer (NoPE), tied embeddings",
)
def smollm3(
    *,
    d_model: int = 2048,
    n_layers: int = 36,
    n_heads: int = 16,
    d_ff: int = 16512,
    every: int = 4,
    max_len: int = 65536,
    **numbers: Any,
) -> Recipe:
    """The released 3B model; with fewer than `every` layers, the last one has no positions."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff}
    recipe = llama(**size, max_len=max_len, **numbers)
    every = min(every, n_layers)
    model = with_mixers(
        rebased(recipe.model, 5e6),
        lambda look, layer: look if (layer + 1) % every else look.replace(position=NoPosition()),
    )
    return recipe.replace(name="smollm3", model=with_eps(model, 1e-6).replace(head=LMHead()))
