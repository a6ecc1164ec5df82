"""From the recipe of a trained model to that of a task: another head and objective, and gentle numbers."""

import dataclasses
import math
from typing import Literal, cast

from kinfolk.core.errors import SpecError
from kinfolk.data import Data
from kinfolk.family.recipe import Recipe
from kinfolk.family.supervise import Labelling, as_classifier
from kinfolk.layers.heads.class_head import PoolingHead
from kinfolk.layers.heads.head import Head, LMHead, MaskedLMHead
from kinfolk.layers.heads.tag_head import SpanHead, TagHead
from kinfolk.layers.heads.two_tower_head import PairHead
from kinfolk.layers.heads.vector_head import VectorHead
from kinfolk.objectives.image import ImageObjective
from kinfolk.objectives.several import Several
from kinfolk.objectives.supervised import Classify, Labels
from kinfolk.optim import AdamW, LinearDecay, Training
from kinfolk.runs.fit import labelling_of, picture_of
from kinfolk.runs.huggingface.recipe import BY_TOPOLOGY
from kinfolk.train.finetune.source import PretrainedSource

WIDTH, RATE = 768, 5e-5
"""What Devlin et al. 2019 advise for a body of this width; a narrower one learns with larger steps."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to learn, and from how much at once. `steps` 0: `epochs` decide. `length` 0: as long as texts are.

    lr: 0 is what suits the width of the body. patience: validations without improvement; 0: never stop early.
    metric: which measure decides what is best; "" is the usual one of the labels. cut: what is left of longer texts.
    validations: of each epoch. further: steps of pre-training on the task's text without its labels, before all else.
    """

    epochs: float = 3.0
    steps: int = 0
    batch_size: int = 32
    length: int = 0
    lr: float = 0.0
    patience: int = 0
    metric: str = ""
    cut: Literal["head", "tail", "both"] = "head"
    validations: int = 1
    further: int = 0


def recipe_for(source: PretrainedSource, data: Data, effort: Effort) -> Recipe:
    """Return the recipe of a task: the body of the source, and what its data asks for."""
    recipe, labelling = source.recipe, labelling_of(data)
    own = recipe.model
    vocab_size = max(own.vocab_size, data.tokenizer.vocab_size)
    recipe = recipe.replace(model=own.replace(vocab_size=vocab_size))
    metric = ""
    if labelling is None:
        recipe = _speaking(recipe, data.kind)
        length = effort.length or min(recipe.training.length, own.max_len)
    elif picture_of(data) is not None:
        recipe, length, metric = _seeing(recipe, labelling), recipe.training.length, labelling.task.decides
    else:
        length = labelling.length
        if not labelling.row:
            length = _length(own.max_len, labelling, effort.length)
        recipe = _classifier(recipe, dataclasses.replace(labelling, length=length), data)
        metric = labelling.task.metric(data.split("train").classes)
        recipe = _beside(recipe, data)
    training = _training(recipe.training, data, effort, own.d_model, length)
    metric = "" if effort.metric == "loss" else effort.metric or metric
    return recipe.replace(name=source.recipe.name, training=training.replace(metric=metric))


def _beside(recipe: Recipe, data: Data) -> Recipe:
    """Add a head and an objective for every task that is learnt beside the first."""
    parts = data.split("train").parts[1:]
    if not parts:
        return recipe
    others, heads = [], []
    for part in parts:
        alone = dataclasses.replace(data, splits={"train": part})
        classifier = _classifier(recipe, cast(Labelling, labelling_of(alone)), data)
        others.append(classifier.objective)
        heads.append(classifier.model.head)
    several = Several(task=recipe.objective, others=tuple(others), heads=tuple(heads))
    return recipe.replace(objective=several)


def _classifier(recipe: Recipe, labelling: Labelling, data: Data) -> Recipe:
    """Return a recipe with the head and the objective of a task."""
    # a head that judges already would be kept as it is, whatever it judges
    bare = recipe.replace(objective=BY_TOPOLOGY[recipe.model.topology])
    return _opened(_pooled(as_classifier(bare, labelling), recipe.model.head), data)


def _length(max_len: int, labelling: Labelling, asked: int) -> int:
    """Return where texts are cut: as long as they are, unless a model has no positions for that."""
    n = labelling.together
    room = (max_len - labelling.marks) // n
    if asked > room:
        raise SpecError(f"length: {asked} tokens of {n} texts do not fit the model's {max_len} positions")
    return asked or min(labelling.length, room)


def _training(old: Training, data: Data, effort: Effort, width: int, length: int) -> Training:
    rows = len(data.split("train"))
    batch_size = min(effort.batch_size, max(1, rows))
    per_epoch = max(1, math.ceil(rows / batch_size))
    if data.kind == "text":
        per_epoch = max(1, data.split("train").n_tokens // (length * batch_size))
    steps = effort.steps or max(1, round(effort.epochs * per_epoch))
    every = max(1, min(steps, round(per_epoch / effort.validations)))
    lr = effort.lr or RATE * WIDTH / width
    return Training(
        steps=steps,
        batch_size=batch_size,
        length=length,
        cut=effort.cut,
        order=old.order if data.kind == "text" else "shuffled",
        optimiser=AdamW(lr=lr, weight_decay=0.01),
        schedule=LinearDecay(warmup=0.1),
        eval_every=every,
        save_every=every,
        eval_batches=0,
        keep_last=1,
        patience=effort.patience,
        precision=old.precision,
        compile="off",
        recompute=old.recompute,
    )


def _pooled(recipe: Recipe, old: Head) -> Recipe:
    """Ask for classes where a sentence vector was taken from: there the body has learnt to say what a text is."""
    head = recipe.model.head
    if isinstance(old, VectorHead) and isinstance(head, PoolingHead):
        head = head.replace(pool=old.pool, activation=old.activation)
        return recipe.replace(model=recipe.model.replace(head=head))
    return recipe


def _opened(recipe: Recipe, data: Data) -> Recipe:
    """Let a pretrained encoder read texts behind the opening token that it was pretrained with, whatever is asked.

    Without it every position is another one and there is no token to attend to where nothing is of interest: MiniLM
    loses 0.10 of entity F1 on WNUT-17. Tokenizers that put nothing before a text (XLNet's) are left to do so.
    """
    objective, around = recipe.objective, data.tokenizer.around
    if recipe.model.topology != "encoder" or not isinstance(objective, Labels) or (around and not around[0]):
        return recipe
    return recipe.replace(objective=objective.replace(opening="cls"))


def _seeing(recipe: Recipe, labelling: Labelling) -> Recipe:
    if isinstance(recipe.objective, ImageObjective):
        raise SpecError("task 'image': this model generates images; start from one that reads them, such as vit")
    recipe = recipe if isinstance(recipe.objective, Labels) else recipe.replace(objective=Classify())
    return as_classifier(recipe, Labelling(labelling.n_classes, task=labelling.task))


def _speaking(recipe: Recipe, kind: str) -> Recipe:
    """Return a recipe that predicts tokens, of running text or of the targets of pairs."""
    model = recipe.model
    judges = isinstance(model.head, PoolingHead | VectorHead | TagHead | SpanHead | PairHead)
    if kind == "pairs" and model.topology == "encoder":
        raise SpecError("task 'seq2seq': an encoder writes nothing; begin with a decoder or an encoder-decoder")
    if not judges and not isinstance(recipe.objective, Labels):
        return recipe.learning_from(kind)
    head = MaskedLMHead() if model.topology == "encoder" else LMHead()
    recipe = recipe.replace(model=model.replace(head=head), objective=BY_TOPOLOGY[model.topology])
    return recipe.learning_from(kind)
