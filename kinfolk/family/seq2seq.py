"""Recurrent encoder-decoders (seq2seq), without attention and with additive or multiplicative attention."""

from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.assembly import stack
from kinfolk.family.recipe import Recipe
from kinfolk.family.recurrent import CELLS
from kinfolk.family.registry import relative
from kinfolk.family.transformer import vanilla
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.init import Xavier
from kinfolk.layers.mixers.alignment_score import Additive, AlignmentScore, DotScore, General
from kinfolk.layers.mixers.attentional_rnn import Attentional, Feeding, Searching
from kinfolk.layers.mixers.rnn import Chained, Recurrent
from kinfolk.layers.part import Part
from kinfolk.models.block import Block
from kinfolk.models.bridge import LastLayer
from kinfolk.models.ends import Ends
from kinfolk.models.stack import Stack
from kinfolk.objectives.sequence import SequenceToSequence

SCORES: dict[str, AlignmentScore] = {"dot": DotScore(), "general": General(), "additive": Additive()}


def _one_of(name: str, value: str, known: dict[str, Any]) -> Any:
    if value not in known:
        raise SpecError(f"{name}: unknown {value!r}{suggest(value, known)}")
    return known[value]


def _layers(n_layers: int, *parts: Part) -> Stack:
    return stack(Block(parts=parts, residual=Chained()), n_layers)


@relative(
    "seq2seq",
    parent="vanilla",
    paper="Sutskever et al. 2014, Sequence to Sequence Learning with Neural Networks, arXiv:1409.3215",
    changes="recurrent layers that hand over their last states and nothing else; heads and d_ff mean nothing",
)
def seq2seq(
    *,
    cell: str = "lstm",
    d_model: int = 1000,
    n_layers: int = 4,
    n_heads: int = 1,
    dropout: float = 0.0,
    **numbers: Any,
) -> Recipe:
    """Section 3: four layers of long short-term memory on either side; the source is read from its end."""
    own: dict[str, Any] = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "dropout": dropout}
    recipe, kind = vanilla(**own, **numbers), _one_of("cell", cell, CELLS)
    model = recipe.model.replace(
        embedding=Tokens(),
        encoder=_layers(n_layers, kind.replace(direction="future")),
        decoder=_layers(n_layers, kind),
        bridge=Ends(),
        init=Xavier(),
    )
    training = recipe.training.replace(clip=5.0)
    return recipe.replace(name="seq2seq", model=model, objective=SequenceToSequence(), training=training)


@relative(
    "rnn-search",
    parent="seq2seq",
    paper="Bahdanau et al. 2014, Neural Machine Translation by Jointly Learning to Align and Translate, "
    "arXiv:1409.0473",
    changes="the source is read from both ends, and before every step the decoder looks for what matters in it",
)
def rnn_search(*, cell: str = "gru", score: str = "additive", n_layers: int = 1, **numbers: Any) -> Recipe:
    """Section 3; layers beyond the first are below, in the encoder, and above, in the decoder."""
    recipe = seq2seq(cell=cell, n_layers=n_layers, **numbers)
    kind: Recurrent = CELLS[cell]
    search = Searching(cell=kind, score=_one_of("score", score, SCORES))
    above = _layers(n_layers, kind)
    first = Block(parts=(search,), residual=Chained())
    model = recipe.model.replace(
        encoder=_layers(n_layers, kind.replace(direction="both")),
        decoder=above.replace(blocks=(first, *above.blocks[1:])),
        bridge=LastLayer(),
    )
    return recipe.replace(name="rnn-search", model=model)


@relative(
    "luong",
    parent="seq2seq",
    paper="Luong et al. 2015, Effective Approaches to Attention-based Neural Machine Translation, arXiv:1508.04025",
    changes="the decoder's last layer compares states to look at the source, and tells its first layer next time",
)
def luong(
    *, cell: str = "lstm", score: str = "general", feeding: bool = True, n_layers: int = 4, **numbers: Any
) -> Recipe:
    """Sections 3.1 and 3.3, global attention; without `feeding` all tokens are read at once."""
    recipe = seq2seq(cell=cell, n_layers=n_layers, **numbers)
    kind, how = CELLS[cell], _one_of("score", score, SCORES)
    decoder = _layers(1, Feeding(cell=kind, score=how, n_layers=n_layers))
    if not feeding:
        decoder = _layers(n_layers, kind)
        last = Block(parts=(kind, Attentional(score=how)), residual=Chained())
        decoder = decoder.replace(blocks=(*decoder.blocks[:-1], last))
    return recipe.replace(name="luong", model=recipe.model.replace(decoder=decoder))
