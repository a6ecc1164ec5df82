"""ELECTRA: encoders pre-trained by replaced-token detection."""

from typing import Any

from kinfolk.core.errors import SpecError
from kinfolk.family.bert import bert, masked_only
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Projected
from kinfolk.layers.heads.detection_head import DetectionHead
from kinfolk.layers.heads.head import MaskedLMHead
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.objectives.replaced import ReplacedTokens
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay


@relative(
    "electra",
    parent="bert",
    paper="Clark et al. 2020, ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators",
    changes="a small generator fills in hidden tokens, and the model tells of every token whether it was replaced",
)
def electra(
    *,
    d_model: int = 768,
    n_heads: int = 12,
    d_ff: int = 3072,
    d_inner: int = 0,
    shrink: int = 3,
    **numbers: Any,
) -> Recipe:
    """Sections 2 and 3.2, the base size; the generator has a `shrink`-th of the heads and of all widths.

    `d_inner` is the width of the shared embedding, 0: that of the model, which then needs no map after it.
    """
    if shrink < 1:
        raise SpecError(f"shrink: {shrink} is not allowed; 1 gives a generator as large as the model")
    recipe = masked_only(bert(d_model=d_model, n_heads=n_heads, d_ff=d_ff, **numbers))
    of, few = recipe.model.embedding, max(1, n_heads // shrink)
    width = few * d_model // n_heads
    small = masked_only(bert(d_model=width, n_heads=few, d_ff=max(1, d_ff * width // d_model), **numbers)).model
    generator = small.replace(
        embedding=Projected(of=of, d_inner=d_inner or d_model),
        head=MaskedLMHead(norm=LayerNorm(eps=1e-12), to="table"),
    )
    model = recipe.model.replace(embedding=Projected(of=of, d_inner=d_inner) if d_inner else of, head=DetectionHead())
    training = recipe.training.replace(
        steps=766_000, optimiser=AdamW(lr=2e-4, eps=1e-6, weight_decay=0.01), schedule=LinearDecay(warmup=10_000)
    )
    return recipe.replace(name="electra", model=model, objective=ReplacedTokens(generator=generator), training=training)
