"""Modifications after 2021 on one Llama-like body, each with what its paper claims; no figures are printed anywhere.

The body is `llama`. Zhao et al. 2026 (arXiv:2605.20798) is a study of the same kind.
"""

from collections.abc import Callable
from typing import Any

from kinfolk.family.assembly import with_depth, with_feed_forward, with_mixer, with_mixers, with_residual
from kinfolk.family.changes import with_kind
from kinfolk.family.deepseek import latent
from kinfolk.family.extended import with_canon
from kinfolk.family.llama import llama
from kinfolk.family.recipe import Recipe
from kinfolk.family.tables import Change, Published, Table, TableRow, slug
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.feed_forwards.gated_experts import GatedExperts, TopK
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.attention_extras import ForgetGate, HeadGate, QKVConv, ValueResidual
from kinfolk.layers.mixers.decay import StepDecay
from kinfolk.layers.mixers.differential_attention import DifferentialAttention
from kinfolk.layers.mixers.evolved import Branches
from kinfolk.layers.mixers.extended_attention import ExtendedAttention
from kinfolk.layers.mixers.linear_recurrence import LinearRecurrence
from kinfolk.layers.mixers.softmax import Sink, Softcap
from kinfolk.layers.norms.norm import NoNorm, RMSNorm
from kinfolk.layers.norms.sandwich_norm import SandwichNorm
from kinfolk.layers.part import Part
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import ALiBi, Rotary
from kinfolk.models.depth.skips import EmbeddingSkip, ShareValues
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.objectives.multi_token import MultiToken
from kinfolk.ops.patterns.leaves import Causal, Window

UNPRINTED = Published(None, None, None, None, None, None)
NORM = RMSNorm(eps=1e-5)


def body(
    *,
    d_model: int = 768,
    n_layers: int = 12,
    n_heads: int = 12,
    d_ff: int = 3072,
    vocab_size: int = 32000,
    max_len: int = 2048,
    dropout: float = 0.0,
) -> Recipe:
    """Return the body that all rows change: `llama` with a head of keys for every head of queries."""
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "d_ff": d_ff, "group": 1}
    return llama(**size, vocab_size=vocab_size, max_len=max_len, dropout=dropout)


def of_model(change: Callable[[Model], Model]) -> Change:
    """Return the change of a recipe that changes its model."""
    return lambda recipe: recipe.replace(model=change(recipe.model))


def looks(change: Callable[[Attention], Part]) -> Change:
    """Return the change of every attention."""
    return of_model(lambda model: with_mixer(model, change))


def layered(change: Callable[[Attention, int], Part]) -> Change:
    """Return a change of attention that depends on the number of its layer."""
    return of_model(lambda model: with_mixers(model, change))


def extended(*extras: Any) -> Change:
    """Return the change that gives every attention these extras."""
    return looks(lambda look: ExtendedAttention.of(look, *extras))


def kind(name: str) -> Change:
    """Return the change of that name."""
    return lambda recipe: with_kind(recipe, name)


def dense(recipe: Recipe) -> Recipe:
    """Return feed-forwards of squared ReLU, with as many parameters."""

    def plain(think: Any) -> Dense:
        assert isinstance(think, Gated)
        return Dense(d_ff=max(1, think.d_ff * 3 // 2), activation="squared-relu", bias=False)

    return recipe.replace(model=with_feed_forward(recipe.model, plain))


def parallel(recipe: Recipe) -> Recipe:
    """Return attention and feed-forward side by side behind one norm."""

    def joined(depth: Stack) -> Stack:
        blocks = (block.replace(parts=(Branches(parts=block.parts),)) for block in depth.blocks)
        return depth.replace(blocks=tuple(blocks))

    return recipe.replace(model=with_depth(recipe.model, joined))


def experts(recipe: Recipe) -> Recipe:
    """Return eight experts, two for each token, which together are as wide as the feed-forward."""

    def chosen(think: Any) -> GatedExperts:
        return GatedExperts(n_experts=8, d_ff=max(1, think.d_ff // 2), router=TopK(k=2, balance=0.02))

    return recipe.replace(model=with_feed_forward(recipe.model, chosen))


def value_residual(recipe: Recipe) -> Recipe:
    """Return values that lean on those of the first layer."""
    mixed = layered(lambda look, layer: ExtendedAttention.of(look, ValueResidual(role="takes" if layer else "gives")))
    return recipe.replace(model=with_depth(mixed(recipe).model, lambda depth: depth.wrap(ShareValues())))


def local(look: Attention, layer: int) -> Attention:
    """Return a window of 64 in five layers of six."""
    return look if (layer + 1) % 6 == 0 else look.replace(pattern=Causal() & Window(left=63))


def hybrid(recipe: Recipe) -> Recipe:
    """Return Gated DeltaNet in three layers of four; a stack of two has one of each."""
    depth = recipe.model.decoder
    assert depth is not None
    every = max(2, min(4, depth.n_layers))

    def mixer(look: Attention, layer: int) -> Part:
        delta: dict[str, Any] = {
            "decay": StepDecay(),
            "update": "delta",
            "features": "swish-unit",
            "kernel": 4,
            "gate": "swish",
        }
        return look if (layer + 1) % every == 0 else LinearRecurrence(n_heads=look.n_heads, **delta)

    return recipe.replace(model=with_mixers(recipe.model, mixer))


def differential(look: Attention) -> DifferentialAttention:
    """Return differential attention with as many softmaxes."""
    fields = {name: getattr(look, name) for name in look.__dataclass_fields__}
    even = look.n_heads + look.n_heads % 2
    return DifferentialAttention(**(fields | {"n_heads": even, "n_kv_heads": 0, "d_head": look.d_head}), start=0.2)


def _row(name: str, changes: str, claim: str, change: Change, **more: Any) -> TableRow:
    return TableRow(name=name, key=slug(name), published=UNPRINTED, changes=changes, claim=claim, change=change, **more)


def _mla(recipe: Recipe) -> Recipe:
    width = recipe.model.d_model
    return looks(lambda look: latent(width, look.n_heads))(recipe)


ROWS = (
    _row("Llama body", "nothing", "", lambda recipe: recipe),
    _row("QK-norm", "RMSNorm on queries and keys", "no divergence at high rates (Dehghani et al. 2023)",
         looks(lambda look: look.replace(qk_norm=NORM))),
    _row("Partial RoPE", "half of each head is rotated", "no loss (GPT-J 2021, GPT-NeoX 2022)",
         looks(lambda look: look.replace(position=Rotary(base=10000.0, layout="halves", share=0.5)))),
    _row("ALiBi", "distances as biases", "longer inputs than in training at no cost (Press et al. 2022)",
         looks(lambda look: look.replace(position=ALiBi()))),
    _row("NoPE", "no positions", "better at longer inputs than explicit positions (Kazemnejad et al. 2023)",
         looks(lambda look: look.replace(position=NoPosition()))),
    _row("Grouped queries", "one head of keys for four of queries",
         "near the quality of multi-head attention at the speed of multi-query (Ainslie et al. 2023)",
         looks(lambda look: look.replace(n_kv_heads=max(1, look.n_heads // 4)) if look.n_heads % 4 == 0 else
               look.replace(n_kv_heads=1))),
    _row("MLA", "keys and values from a narrow latent",
         "better than multi-head attention with a far smaller cache (DeepSeek-V2, 2024)", _mla),
    _row("Softcap", "scores bounded by 50", "stable training (Gemma 2, 2024)",
         looks(lambda look: look.replace(softmax=Softcap()))),
    _row("Sinks", "a learned logit takes a share", "no sink in the first token (gpt-oss, 2025)",
         looks(lambda look: look.replace(softmax=Sink()))),
    _row("Local and global", "a window in five layers of six",
         "a far smaller cache at almost no loss (Gemma 3, 2025)", layered(local)),
    _row("Gated attention", "a sigmoid gate behind the softmax",
         "lower loss, no sinks (Qiu et al. 2025)", extended(HeadGate())),
    _row("Forgetting attention", "scores decay by forget gates, no positions",
         "better at long contexts than RoPE (Lin et al. 2025)",
         looks(lambda look: ExtendedAttention.of(look.replace(position=NoPosition()), ForgetGate()))),
    _row("Differential attention", "the difference of two softmaxes",
         "equal loss with 65 % of parameters or tokens (Ye et al. 2024)", looks(differential)),
    _row("Primer convolution", "a depthwise convolution behind q, k, v",
         "with squared ReLU a quarter of the training cost (So et al. 2021)", extended(QKVConv())),
    _row("Squared ReLU", "dense feed-forwards of squared ReLU",
         "with the convolution a quarter of the training cost (So et al. 2021)", dense),
    _row("Canon", "short convolutions at four places", "twice the depth of reasoning (Allen-Zhu 2025)",
         of_model(with_canon)),
    _row("Value residual", "values lean on those of the first layer",
         "equal loss with 16 % fewer parameters or 20 % less data (Zhou et al. 2024)", value_residual),
    _row("x0 skip", "blocks read the embedding too", "faster training (modded-nanogpt, 2024)",
         of_model(lambda model: with_depth(model, lambda depth: depth.wrap(EmbeddingSkip())))),
    _row("Sandwich norm", "norms before and behind each part", "stable training (Gemma 2, 2024)",
         of_model(lambda model: with_residual(model, SandwichNorm(before=NORM, after=NORM), NORM))),
    _row("Norm behind", "norms behind each part, inside the residual, and QK-norm", "stable training (OLMo 2, 2024)",
         lambda recipe: looks(lambda look: look.replace(qk_norm=NORM, qk_norm_over="heads"))(
             recipe.replace(model=with_residual(recipe.model, SandwichNorm(before=NoNorm(), after=NORM), NORM)))),
    _row("Parallel block", "attention and feed-forward side by side",
         "faster, no loss at large sizes (GPT-J 2021; Chowdhery et al. 2022)", parallel),
    _row("Experts", "eight experts, two for each token", "far better at equal work (Mixtral, 2024)", experts),
    _row("Hybrid", "Gated DeltaNet in three layers of four", "better and cheaper (Yang et al. 2024)",
         hybrid),
    _row("z-loss", "the squared log-normaliser is kept small", "stable training (Chowdhery et al. 2022)",
         of_model(lambda model: model.replace(head=LMHead(weights="untied", z_loss=1e-4)))),
    _row("Multi-token", "a module predicts one token more", "more learnt per token (DeepSeek-V3, 2024)",
         lambda recipe: recipe.replace(objective=MultiToken(of=recipe.objective))),
    _row("Muon", "matrices by Muon", "twice as efficient as AdamW (Liu et al. 2025)", kind("muon")),
    _row("Lion", "signs of a momentum", "up to a fifth of the work of AdamW (Chen et al. 2023)", kind("lion")),
    _row("Schedule-free", "an average of all iterates, a constant rate",
         "as good as the best schedule without knowing the end (Defazio et al. 2024)", kind("schedule-free")),
)  # fmt: skip

TABLE = Table(
    name="modern",
    title="Modifications after 2021 on one Llama-like body.",
    paper="claims of the papers named in the rows; Zhao et al. 2026, arXiv:2605.20798, is a study of the same kind",
    year=2026,
    baseline=body,
    rows=ROWS,
    topology="decoder",
)
