"""GTrXL: Transformer-XL for reinforcement learning, with gated residuals (Parisotto et al. 2019)."""

from typing import Any

from kinfolk.core.plain import from_plain
from kinfolk.family.assembly import with_residual
from kinfolk.family.positions import transformer_xl
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.residuals.gate import Gate
from kinfolk.layers.residuals.rezero import GatedResidual


@relative(
    "trxl-i",
    parent="transformer-xl",
    paper="Parisotto et al. 2019, Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764",
    changes="identity-map reordering: norms before each part and a ReLU behind it, so that the input passes unchanged",
)
def trxl_i(**numbers: Any) -> Recipe:
    """Section 3.1: the identity-map reordering, with sums."""
    return _gated(numbers, "trxl-i", "add")


@relative(
    "gtrxl",
    parent="trxl-i",
    paper="Parisotto et al. 2019, Stabilizing Transformers for Reinforcement Learning, arXiv:1910.06764",
    changes="a gate in the place of each sum, which starts almost closed",
)
def gtrxl(*, d_model: int = 256, gate: str = "gru", **numbers: Any) -> Recipe:
    """Section 3.2, at the paper's width; `gate` is one of the five that it compares."""
    return _gated({"d_model": d_model} | numbers, "gtrxl", gate)


def _gated(numbers: dict[str, Any], name: str, gate: str) -> Recipe:
    recipe = transformer_xl(**numbers)
    residual = GatedResidual(gate=from_plain(Gate, {"kind": gate}, "gate"))
    return recipe.replace(name=name, model=with_residual(recipe.model, residual, LayerNorm()))
