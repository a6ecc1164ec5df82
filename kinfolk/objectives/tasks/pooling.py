"""Choice of sequence pooling for a head, by the direction of attention."""

from typing import Any, Literal

from kinfolk.layers.adapters import Adapted
from kinfolk.layers.linear_maps import Mapped
from kinfolk.layers.mixers.adaptive_span import Unlimited
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.disentangled import DisentangledAttention
from kinfolk.layers.mixers.knowledge_attention import KnowledgeAttention
from kinfolk.layers.part import FeedForward, Part
from kinfolk.models.depth.depth import Depth
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import Causal, Full


def of_sequences(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how a head pools the states of a sequence, and how the objective gives it the sequence.

    Where every position attends to all others in each layer (in a decoder: all before it), one state summarises the
    whole: a [CLS] token's, through a tanh layer, in an encoder (Devlin et al. 2019), the last token's in a decoder
    (Radford et al. 2018). Elsewhere it is the mean of all states: what is far from the one might never reach it. An
    encoder-decoder reads the text as its source, and is asked at the first state of its decoder.
    """
    if model.topology == "encoder-decoder":
        return {"pool": "first"}, {"reads": "source"}
    if not _attends_to_all(model.encoder or model.decoder):
        return {"pool": "mean"}, {}
    if model.topology == "decoder":
        return {"pool": "last"}, {}
    return {"pool": "first", "activation": "tanh"}, {"opening": "cls"}


def of_tokens(model: Model) -> Literal["tokens", "both"]:
    """Return how the objective gives a model its tokens, so that each has a state that has seen all."""
    return "both" if model.topology == "encoder-decoder" else "tokens"


def _inside(part: Part) -> Part:
    """Return the part inside other linear maps or an adapter."""
    return _inside(part.part) if isinstance(part, Mapped | Adapted) else part


def _attends_to_all(depth: Depth | None) -> bool:
    """Tell whether in each layer every position attends to all others, or all before it."""
    if not isinstance(depth, Stack):
        return False
    # knowledge attention is over entities, not over positions
    others = FeedForward | KnowledgeAttention
    every = [_inside(part) for block in depth.blocks for part in block.parts]
    mixers = [part for part in every if not isinstance(part, others)]
    return all(
        type(part) in (Attention, DisentangledAttention)
        and isinstance(part, Attention)
        and isinstance(part.pattern, Full | Causal)
        and isinstance(part.span, Unlimited)
        for part in mixers
    )
