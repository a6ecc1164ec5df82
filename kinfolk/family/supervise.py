"""From any relative to one that judges what it reads: another head and another objective, the same body."""

import dataclasses

from kinfolk.family.recipe import Recipe
from kinfolk.layers.attention import Attention
from kinfolk.layers.class_head import ClassHead
from kinfolk.layers.part import FeedForward
from kinfolk.layers.span import Unlimited
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.objectives.supervised import Classify, Labels
from kinfolk.ops.pattern import Full


@dataclasses.dataclass(frozen=True)
class Labelling:
    """What labelled data asks of a model: how many classes, of one sequence or two, of how many tokens each."""

    n_classes: int
    length: int
    n_sequences: int = 1


def as_classifier(recipe: Recipe, n_classes: int, *, length: int | None = None, n_sequences: int = 1) -> Recipe:
    """Let a relative classify sequences, or pairs of them.

    A decoder is asked at the last token, which has seen everything (Radford et al. 2018). An encoder is asked at an
    opening token through a tanh layer (Devlin et al. 2019) if every position sees all others in each of its layers,
    and by the mean of its states if not: what stands far from the first token might never reach it. An encoder-decoder
    reads the text as its source, and is asked at the first state of its decoder.

    length: of the longest sequence, its end included; positions are made to suffice for it. A recipe that scores
    labels already keeps its way of doing so, and gets the number of classes.
    """
    model, head = recipe.model, recipe.model.head
    if isinstance(recipe.objective, Labels) and isinstance(head, ClassHead):
        return recipe.replace(model=model.replace(head=head.replace(n_classes=n_classes)))
    objective = Classify()
    if model.topology == "encoder-decoder":
        head, objective = ClassHead(n_classes=n_classes, pool="first"), Classify(reads="source")
    elif model.topology == "decoder":
        head = ClassHead(n_classes=n_classes, pool="last")
    elif _first_sees_all(model):
        head, objective = ClassHead(n_classes=n_classes, pool="first", activation="tanh"), Classify(opening="cls")
    else:
        head = ClassHead(n_classes=n_classes, pool="mean")
    training = recipe.training
    if length is not None:
        training = training.replace(length=length)
        # both sequences in one row, and what opens it
        model = model.replace(max_len=max(model.max_len, n_sequences * length + 1))
    return recipe.replace(model=model.replace(head=head), objective=objective, training=training)


def judging(recipe: Recipe, labelling: Labelling | None) -> Recipe:
    """Fit a recipe to what its data asks; data without labels asks nothing."""
    if labelling is None:
        return recipe
    asked = dataclasses.asdict(labelling)
    return as_classifier(recipe, asked.pop("n_classes"), **asked)


def _first_sees_all(model: Model) -> bool:
    """Whether in each layer of an encoder the first position looks at all others."""
    if not isinstance(model.encoder, Stack):
        return False
    parts = [part for block in model.encoder.blocks for part in block.parts if not isinstance(part, FeedForward)]
    return all(
        type(part) is Attention and isinstance(part.pattern, Full) and isinstance(part.span, Unlimited)
        for part in parts
    )
