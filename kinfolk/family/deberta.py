"""DeBERTa and its second release: BERT with disentangled attention of content and position."""

from typing import Any

from kinfolk.family.assembly import with_mixer
from kinfolk.family.bert import bert, masked_only
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.heads.head import MaskedLMHead
from kinfolk.layers.mixers.disentangled import Disentangled, DisentangledAttention
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.stack import Stack
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay

NORM = LayerNorm(eps=1e-7)


@relative(
    "deberta",
    parent="bert",
    paper="He et al. 2020, DeBERTa: Decoding-enhanced BERT with Disentangled Attention, arXiv:2006.03654",
    changes="scores add content with content, content with distance and distance with content; no other positions",
)
def deberta(*, vocab_size: int = 50265, **numbers: Any) -> Recipe:
    """Section 3.1 and appendix A.2, without the absolute positions before the output layer of section 3.2."""
    recipe = _disentangled(vocab_size, numbers, Disentangled(key_bias=False), key_bias=False)
    return recipe.replace(name="deberta")


@relative(
    "deberta-v2",
    parent="deberta",
    paper="He et al. 2021, DeBERTaV3: Improving DeBERTa using ELECTRA-Style Pre-Training, arXiv:2111.09543",
    changes="distances through the maps of content, and in buckets that grow with the distance; a norm on their table",
)
def deberta_v2(*, vocab_size: int = 128100, buckets: int = 0, **numbers: Any) -> Recipe:
    """The second release's attention; `buckets` 0 means 256, or half of max_len if that is less."""
    n = buckets or max(2, min(256, int(numbers.get("max_len", 512)) // 2))
    distances = Disentangled(buckets=n, maps="attention", norm=NORM)
    return _disentangled(vocab_size, numbers, distances, key_bias=True).replace(name="deberta-v2")


def _disentangled(vocab_size: int, numbers: dict[str, Any], distances: Disentangled, key_bias: bool) -> Recipe:
    recipe = masked_only(bert(vocab_size=vocab_size, **numbers))
    model = with_mixer(
        recipe.model,
        lambda look: DisentangledAttention(
            n_heads=look.n_heads, dropout=look.dropout, position=distances, key_bias=key_bias
        ),
    )
    depth = model.encoder
    assert isinstance(depth, Stack)
    blocks = tuple(block.replace(residual=PostNorm(norm=NORM)) for block in depth.blocks)
    model = model.replace(
        embedding=Tokens(norm=NORM), encoder=depth.replace(blocks=blocks), head=MaskedLMHead(norm=NORM)
    )
    optimiser = AdamW(lr=2e-4, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
    training = recipe.training.replace(batch_size=2048, optimiser=optimiser, schedule=LinearDecay(warmup=10_000))
    return recipe.replace(model=model, training=training)
