"""Weight sharing across the layers of an encoder, of a decoder, or of both (Lan et al. 2020)."""

from typing import Any

from kinfolk.family.assembly import shared, with_depth
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla_pre
from kinfolk.layers.heads.head import LMHead


@relative(
    "shared",
    parent="vanilla-pre",
    paper="Lan et al. 2019, ALBERT, arXiv:1909.11942; Narang et al. 2021, arXiv:2102.11972 (block sharing)",
    changes="all layers of the encoder share one set of weights, and all of the decoder another",
)
def all_shared(*, n_groups: int = 1, **numbers: Any) -> Recipe:
    """As Narang et al. have it, with an output layer of its own; `n_groups` sets of weights, as ALBERT has groups."""
    recipe = vanilla_pre(**numbers)
    model = with_depth(recipe.model, lambda depth: shared(depth, n_groups)).replace(head=LMHead(weights="untied"))
    return recipe.replace(name="shared", model=model)


@relative(
    "shared-encoder",
    parent="shared",
    paper="Narang et al. 2021, Do Transformer Modifications Transfer, arXiv:2102.11972",
    changes="layers share in the encoder only",
)
def encoder_shared(**numbers: Any) -> Recipe:
    """Their row "Encoder only block sharing"."""
    recipe = all_shared(**numbers)
    every = vanilla_pre(**{k: v for k, v in numbers.items() if k != "n_groups"}).model
    return recipe.replace(name="shared-encoder", model=recipe.model.replace(decoder=every.decoder))


@relative(
    "shared-decoder",
    parent="shared",
    paper="Narang et al. 2021, Do Transformer Modifications Transfer, arXiv:2102.11972",
    changes="layers share in the decoder only",
)
def decoder_shared(**numbers: Any) -> Recipe:
    """Their row "Decoder only block sharing"."""
    recipe = all_shared(**numbers)
    every = vanilla_pre(**{k: v for k, v in numbers.items() if k != "n_groups"}).model
    return recipe.replace(name="shared-decoder", model=recipe.model.replace(encoder=every.encoder))
