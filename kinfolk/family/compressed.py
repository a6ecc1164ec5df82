"""Relatives that look at fewer keys and values than there are positions: Linformer."""

from kinfolk.family.assembly import with_mixer
from kinfolk.family.bert import bert
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.compressed import Linformer


@relative(
    "linformer",
    parent="bert",
    year=2020,
    paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity, arXiv:2006.04768",
    topology="encoder",
    causal=False,
    changes="keys and values of all positions are mixed into a fixed number of slots by learned maps",
)
def linformer(*, max_len: int = 512, rank: int = 0, sharing: str = "headwise", **numbers: int | float) -> Recipe:
    """Section 4; `rank` 0 is a quarter of the positions, the paper's 128 for 512."""
    recipe = bert(max_len=max_len, **numbers)  # type: ignore[arg-type]
    model = with_mixer(
        recipe.model,
        lambda look: Linformer(
            n_heads=look.n_heads,
            rank=rank or max(1, max_len // 4),
            sharing=sharing,
            bias=look.bias,
            dropout=look.dropout,
        ),
    )
    return recipe.replace(name="linformer", model=model)
