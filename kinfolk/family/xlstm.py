"""xLSTM: decoders of matrix and scalar LSTMs with exponential gates."""

from typing import Any

from kinfolk.family.assembly import with_mixers
from kinfolk.family.llama import llama
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.heads.head import LMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.xlstm import MLSTM, SLSTM
from kinfolk.layers.part import Mixer


@relative(
    "xlstm",
    parent="llama",
    year=2024,
    paper="Beck et al. 2024, xLSTM: Extended Long Short-Term Memory, arXiv:2405.04517; Beck et al. 2025, xLSTM 7B, "
    "arXiv:2503.13427",
    topology="decoder",
    causal=True,
    changes="matrix LSTMs with exponential input gates and a normaliser; every eighth layer a scalar LSTM whose gates "
    "read its last output",
)
def xlstm(
    *,
    d_model: int = 4096,
    n_layers: int = 32,
    n_heads: int = 8,
    d_ff: int = 16416,
    every: int = 8,
    vocab_size: int = 50304,
    max_len: int = 8192,
    **numbers: Any,
) -> Recipe:
    """The block and widths of xLSTM 7B with the order of xLSTM[7:1]; `every` 0 is the 7B model, without scalar LSTMs.

    With fewer than `every` layers, the last one is scalar.
    """
    size = {"d_model": d_model, "n_layers": n_layers, "n_heads": 1, "d_ff": d_ff}
    recipe = llama(**size, vocab_size=vocab_size, max_len=max_len, **numbers)
    every = min(every, n_layers)

    def mixer(look: Attention, layer: int) -> Mixer:
        scalar = every and (layer + 1) % every == 0
        return SLSTM(n_heads=n_heads) if scalar else MLSTM(n_heads=n_heads)

    model = with_mixers(recipe.model, mixer).replace(head=LMHead(weights="untied", softcap=30.0))
    return recipe.replace(name="xlstm", model=model)
