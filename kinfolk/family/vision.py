"""Vision Transformer: image classification from patches."""

from kinfolk.family.assembly import with_residual
from kinfolk.family.bert import bert
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.patches import Patches
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.objectives.supervised import Classify
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay
from kinfolk.optim.training import Training


@relative(
    "vit",
    parent="bert",
    paper="Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, arXiv:2010.11929",
    input="image",
    changes="reads patches of an image behind a class token, whose state says the class; norms before each part",
)
def vit(
    *,
    image_width: int = 224,
    channels: int = 3,
    patch: int = 16,
    n_classes: int = 1000,
    vocab_size: int = 263,
    max_len: int = 224 * 224 * 3,
    **numbers: int | float,
) -> Recipe:
    """Section 3.1, ViT-B/16; `max_len` counts the values of the largest image, and so says how high it is.

    vocab_size: values from the darkest to the brightest, and seven specials before them.
    """
    recipe = bert(vocab_size=vocab_size, max_len=max_len, **numbers)  # type: ignore[arg-type]
    norm = LayerNorm(eps=1e-6)
    model = with_residual(recipe.model, PreNorm(norm=norm), norm).replace(
        embedding=Patches(columns=image_width, channels=channels, patch=patch, levels=max(1, vocab_size - 8)),
        head=ClassHead(n_classes=n_classes),
    )
    training = Training(
        steps=300_000,
        batch_size=4096,
        length=max_len,
        optimiser=AdamW(lr=1e-3, weight_decay=0.1),
        schedule=LinearDecay(warmup=10_000),
    )
    return Recipe(name="vit", model=model, objective=Classify(), training=training)
