"""From any relative to one that judges what it reads: another head and another objective, the same body."""

import dataclasses

from kinfolk.family.recipe import Recipe
from kinfolk.layers.attention import Attention
from kinfolk.layers.class_head import ClassHead
from kinfolk.layers.part import FeedForward
from kinfolk.layers.span import Unlimited
from kinfolk.models.stack import Depth, Stack
from kinfolk.objectives.image import Pictures
from kinfolk.objectives.supervised import Classify, Labels
from kinfolk.ops.pattern import Causal, Full


@dataclasses.dataclass(frozen=True)
class Labelling:
    """What labelled data asks of a model: how many classes, of one sequence or two, of how many tokens each."""

    n_classes: int
    length: int
    n_sequences: int = 1


def as_classifier(recipe: Recipe, n_classes: int, *, length: int | None = None, n_sequences: int = 1) -> Recipe:
    """Let a relative classify sequences, or pairs of them.

    Where every position sees all others in each layer (in a decoder: all before it), one state stands for the whole:
    an opening token's, through a tanh layer, in an encoder (Devlin et al. 2019), the last token's in a decoder
    (Radford et al. 2018). Elsewhere it is the mean of all states: what is far from the one might never reach it. An
    encoder-decoder reads the text as its source, and is asked at the first state of its decoder.

    length: of the longest sequence, its end included; positions are made to suffice for it. A recipe that scores
    labels already keeps its way of doing so, and gets the number of classes.
    """
    model, head = recipe.model, recipe.model.head
    if isinstance(recipe.objective, Labels) and isinstance(head, ClassHead):
        return recipe.replace(model=model.replace(head=head.replace(n_classes=n_classes)))
    objective = Classify()
    if model.topology == "encoder-decoder":
        head, objective = ClassHead(n_classes=n_classes, pool="first"), Classify(reads="source")
    elif not _sees_all(model.encoder or model.decoder):
        head = ClassHead(n_classes=n_classes, pool="mean")
    elif model.topology == "decoder":
        head = ClassHead(n_classes=n_classes, pool="last")
    else:
        head, objective = ClassHead(n_classes=n_classes, pool="first", activation="tanh"), Classify(opening="cls")
    training = recipe.training
    if length is not None:
        training = training.replace(length=length)
        # both sequences in one row, and what opens it
        model = model.replace(max_len=max(model.max_len, n_sequences * length + 1))
    return recipe.replace(model=model.replace(head=head), objective=objective, training=training)


def judging(recipe: Recipe, labelling: Labelling | None) -> Recipe:
    """Fit a recipe to what its data asks; data without labels asks nothing, and who makes pictures is not asked."""
    if labelling is None or isinstance(recipe.objective, Pictures):
        return recipe
    asked = dataclasses.asdict(labelling)
    return as_classifier(recipe, asked.pop("n_classes"), **asked)


def _sees_all(depth: Depth | None) -> bool:
    """Whether in each layer every position looks at all others, or all before it."""
    if not isinstance(depth, Stack):
        return False
    looks = [part for block in depth.blocks for part in block.parts if not isinstance(part, FeedForward)]
    return all(
        type(part) is Attention and isinstance(part.pattern, Full | Causal) and isinstance(part.span, Unlimited)
        for part in looks
    )
