"""Recurrent language models, one with adaptive computation time: baselines of Transformers."""

from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.assembly import stack
from kinfolk.family.gpt import gpt
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import relative
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.halting import Pondering
from kinfolk.layers.init import Xavier
from kinfolk.layers.mixers.act_rnn import PonderingRNN
from kinfolk.layers.mixers.rnn import GRU, LSTM, Chained
from kinfolk.layers.part import Mixer
from kinfolk.models.block import Block

CELLS = {"lstm": LSTM(), "gru": GRU()}


def _chain(name: str, part: Mixer, n_layers: int, numbers: dict[str, Any]) -> Recipe:
    """Put recurrent layers one on the other in place of a decoder; they know the order of tokens by themselves."""
    recipe = gpt(n_layers=n_layers, **numbers)
    layers = stack(Block(parts=(part,), residual=Chained()), n_layers)
    model = recipe.model.replace(embedding=Tokens(), decoder=layers, init=Xavier())
    return recipe.replace(name=name, model=model)


@relative(
    "lstm",
    parent="gpt",
    paper="Zaremba et al. 2014, Recurrent Neural Network Regularization, arXiv:1409.2329",
    changes="layers of long short-term memory instead of attention and feed-forwards; heads and d_ff mean nothing",
)
def lstm(*, n_layers: int = 2, d_model: int = 1500, n_heads: int = 1, dropout: float = 0.65, **numbers: Any) -> Recipe:
    """Section 4.1, the large model: two layers, dropout between them and never from step to step."""
    return _chain("lstm", LSTM(), n_layers, {"d_model": d_model, "n_heads": n_heads, "dropout": dropout, **numbers})


@relative(
    "gru",
    parent="lstm",
    paper="Chung et al. 2014, Empirical Evaluation of Gated Recurrent Neural Networks, arXiv:1412.3555",
    changes="gated recurrent units",
)
def gru(**numbers: Any) -> Recipe:
    """Section 3.2."""
    recipe = lstm(**numbers)
    decoder = stack(Block(parts=(GRU(),), residual=Chained()), recipe.model.dims.n_sublayers)
    return recipe.replace(name="gru", model=recipe.model.replace(decoder=decoder))


@relative(
    "act-rnn",
    parent="lstm",
    paper="Graves 2016, Adaptive Computation Time for Recurrent Neural Networks, arXiv:1603.08983",
    changes="the cell runs again over a token until it halts",
)
def act_rnn(
    *, n_layers: int = 1, cell: str = "lstm", ponder: float = 0.1, max_steps: int = 100, **numbers: Any
) -> Recipe:
    """Section 2; `cell` "lstm" or "gru"."""
    if cell not in CELLS:
        raise SpecError(f"cell: unknown {cell!r}{suggest(cell, CELLS)}")
    recipe = lstm(n_layers=n_layers, **numbers)
    part = PonderingRNN(cell=CELLS[cell], pondering=Pondering(ponder=ponder), max_steps=max_steps)
    decoder = stack(Block(parts=(part,), residual=Chained()), n_layers)
    return recipe.replace(name="act-rnn", model=recipe.model.replace(decoder=decoder))
