"""From any relative to one that judges what it reads: another head and another objective, the same body."""

import dataclasses
from typing import Any, Literal

from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.recipe import Recipe
from kinfolk.layers.adapters import Adapted
from kinfolk.layers.heads.class_head import ClassHead, RegressionHead
from kinfolk.layers.heads.head import Head
from kinfolk.layers.heads.tag_head import SpanHead, TagHead
from kinfolk.layers.heads.two_tower_head import PairHead
from kinfolk.layers.linear_maps import Mapped
from kinfolk.layers.mixers.adaptive_span import Unlimited
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.disentangled import DisentangledAttention
from kinfolk.layers.mixers.knowledge_attention import KnowledgeAttention
from kinfolk.layers.part import FeedForward, Part
from kinfolk.models.model import Model
from kinfolk.models.stack import Depth, Stack
from kinfolk.objectives.apart import ClassifyApart
from kinfolk.objectives.image import Pictures
from kinfolk.objectives.supervised import Classify, ClassifyMany, Labels, Regress, SpanAnswer, Tag
from kinfolk.ops.patterns.leaves import Causal, Full

KINDS: dict[str, type[Labels]] = {
    "class": Classify,
    "classes": ClassifyMany,
    "number": Regress,
    "tags": Tag,
    "span": SpanAnswer,
}
"""What learns from each kind of labels."""


@dataclasses.dataclass(frozen=True)
class Labelling:
    """What labelled data asks of a model: how many classes, of one sequence or two, of how many tokens each.

    length: of the longest sequence, its end included; 0: whatever a model is made for.
    apart: two sequences are read by one model each for itself. labels: one "class" of each example, the "classes" that
    hold, a "number", "tags" of tokens, or the "span" that answers a question. row: the most tokens of a whole row, if
    that is known; 0: as many as its sequences. between: separators between two sequences.
    """

    n_classes: int
    length: int = 0
    n_sequences: int = 1
    apart: bool = False
    labels: str = "class"
    row: int = 0
    between: int = 1

    @property
    def together(self) -> int:
        """How many sequences stand in one row."""
        return 1 if self.apart else self.n_sequences

    @property
    def marks(self) -> int:
        """How many tokens a row has besides its sequences, whose ends are part of them: what opens it, and between
        two sequences all separators but the one that the first ends with."""
        return 1 + (self.together - 1) * (self.between - 1)


def as_classifier(recipe: Recipe, asked: Labelling) -> Recipe:
    """Let a relative classify sequences, or pairs of them.

    Where every position sees all others in each layer (in a decoder: all before it), one state stands for the whole:
    an opening token's, through a tanh layer, in an encoder (Devlin et al. 2019), the last token's in a decoder
    (Radford et al. 2018). Elsewhere it is the mean of all states: what is far from the one might never reach it. An
    encoder-decoder reads the text as its source, and is asked at the first state of its decoder.

    Positions are made to suffice for the longest row. A recipe that scores labels already keeps its way of doing so,
    and gets the number of classes.
    """
    model, head = recipe.model, recipe.model.head
    if isinstance(recipe.objective, Labels) and isinstance(head, ClassHead):
        return recipe.replace(model=model.replace(head=head.replace(n_classes=asked.n_classes)))
    if asked.labels not in KINDS:
        raise SpecError(f"labels: unknown {asked.labels!r}{suggest(asked.labels, KINDS)}")
    head, objective = _asking(model, asked.n_classes, asked.labels, asked.apart)
    training = recipe.training
    if asked.length:
        training = training.replace(length=asked.length)
        longest = asked.row or asked.marks + asked.together * asked.length
        model = model.replace(max_len=max(model.max_len, longest))
    return recipe.replace(model=model.replace(head=head), objective=objective, training=training)


def judging(recipe: Recipe, labelling: Labelling | None) -> Recipe:
    """Fit a recipe to what its data asks; data without labels asks nothing, and who makes pictures is not asked."""
    if labelling is None or isinstance(recipe.objective, Pictures):
        return recipe
    return as_classifier(recipe, labelling)


def _asking(model: Model, n_classes: int, labels: str, apart: bool) -> tuple[Head, Labels]:
    """Return the head that answers, and the objective that asks."""
    pooling, reading = _asked_at(model)
    if apart:
        if labels != "class":
            raise SpecError(f"labels: {labels!r} of two sequences that are read apart are not scored; use 'class'")
        return PairHead(n_classes=n_classes, pool=pooling["pool"]), ClassifyApart(**reading)
    if labels in ("tags", "span"):
        # every token is asked, so each needs a state that has seen all
        reads: Literal["tokens", "both"] = "both" if model.topology == "encoder-decoder" else "tokens"
        if labels == "tags":
            return TagHead(n_tags=n_classes), Tag(reads=reads)
        return SpanHead(), SpanAnswer(reads=reads)
    head = RegressionHead(**pooling) if labels == "number" else ClassHead(n_classes=n_classes, **pooling)
    return head, KINDS[labels](**reading)


def _asked_at(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return which state is asked and through what, for a head, and how the model gets to read, for an objective."""
    if model.topology == "encoder-decoder":
        return {"pool": "first"}, {"reads": "source"}
    if not _sees_all(model.encoder or model.decoder):
        return {"pool": "mean"}, {}
    if model.topology == "decoder":
        return {"pool": "last"}, {}
    return {"pool": "first", "activation": "tanh"}, {"opening": "cls"}


def _inside(part: Part) -> Part:
    """Return what a part is under what was done to it: other maps, an adapter."""
    return _inside(part.part) if isinstance(part, Mapped | Adapted) else part


def _sees_all(depth: Depth | None) -> bool:
    """Whether in each layer every position looks at all others, or all before it."""
    if not isinstance(depth, Stack):
        return False
    # what looks at entities looks at no positions
    others = FeedForward | KnowledgeAttention
    every = [_inside(part) for block in depth.blocks for part in block.parts]
    looks = [part for part in every if not isinstance(part, others)]
    return all(
        type(part) in (Attention, DisentangledAttention)
        and isinstance(part, Attention)
        and isinstance(part.pattern, Full | Causal)
        and isinstance(part.span, Unlimited)
        for part in looks
    )
