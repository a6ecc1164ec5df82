"""What each tactic of the literature changes in a recipe."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kinfolk.core.errors import SpecError
from kinfolk.data import Data
from kinfolk.family.recipe import Recipe
from kinfolk.layers.adapters import Adapted, Lora
from kinfolk.layers.heads.class_head import PoolingHead
from kinfolk.layers.part import Mixer, Part
from kinfolk.models.depth.layer_mix import LayerMix
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.objectives.supervised import Classify, ClassifyMany
from kinfolk.optim import HeadFirst, LayerWise, SlantedTriangular, SomeWeights
from kinfolk.optim.noise import Mixout
from kinfolk.train.finetune.names import Parts, read

Change = Callable[[Recipe, float, Data], Recipe]

HEAD = ("head.*", "partner.*")
_COUNTED = 1 << 14


@dataclasses.dataclass(frozen=True)
class Tactic:
    """Tactics with their numbers, in the order in which they are applied."""

    name: str
    parts: Parts

    def change(self, recipe: Recipe, data: Data) -> Recipe:
        """Return a recipe that follows them."""
        for name, number in self.parts:
            recipe = CHANGES[name](recipe, number, data)
        return recipe

    def fresh(self, model: Model) -> tuple[str, ...]:
        """Return the beginnings of the names of weights that are initialised though the source has them."""
        numbers = dict(self.parts)
        # every name begins with nothing
        return ("",) if "scratch" in numbers else top_blocks(model, int(numbers.get("reinit", 0)))


def parse(text: str) -> Tactic:
    """Read "plain", "layer-wise=0.9" or "lora=8+reinit=2"."""
    return Tactic(text, read(text))


def top_blocks(model: Model, n: int) -> tuple[str, ...]:
    """Return the beginnings of the names of the top n blocks; a decoder counts as above its encoder."""
    names = blocks_of(model)
    if n > len(names):
        raise SpecError(f"reinit={n}: the model has {len(names)} blocks")
    return tuple(names[len(names) - n :])


def _plain(recipe: Recipe, number: float, data: Data) -> Recipe:
    return recipe


def _frozen(recipe: Recipe, number: float, data: Data) -> Recipe:
    return _faster(_moving(recipe, HEAD), 20)


def _bitfit(recipe: Recipe, number: float, data: Data) -> Recipe:
    return _faster(_moving(recipe, (*HEAD, "*bias")), 10)


def _layer_wise(recipe: Recipe, number: float, data: Data) -> Recipe:
    groups = recipe.training.groups
    turn = groups.turn if isinstance(groups, LayerWise) else 0.0
    return _grouped(recipe, LayerWise(factor=number, turn=turn))


def _gradual(recipe: Recipe, number: float, data: Data) -> Recipe:
    """One more block after each turn; all are there when `number` of the training is over."""
    groups = recipe.training.groups if isinstance(recipe.training.groups, LayerWise) else LayerWise(factor=1.0)
    return _grouped(recipe, groups.replace(turn=number / (len(blocks_of(recipe.model)) + 1)))


def _ulmfit(recipe: Recipe, number: float, data: Data) -> Recipe:
    # the lower layers hardly move, so that the upper ones may move far
    recipe = _faster(_grouped(recipe, LayerWise(factor=1 / 2.6, gap=1)), 5)
    return _gradual(_slanted(recipe, 0.1, data), 0.5, data)


def _slanted(recipe: Recipe, number: float, data: Data) -> Recipe:
    training = recipe.training.replace(schedule=SlantedTriangular(warmup=number))
    return recipe.replace(training=training)


def _two_stage(recipe: Recipe, number: float, data: Data) -> Recipe:
    return _grouped(recipe, HeadFirst(alone=number))


def _lora(recipe: Recipe, number: float, data: Data) -> Recipe:
    def beside(part: Part) -> Part:
        return Lora(part=part, rank=int(number), alpha=2.0 * number) if isinstance(part, Mixer) else part

    changed = _with_parts(recipe, beside)
    return _faster(_moving(changed, (*HEAD, "*.down", "*.up")), 10)


def _adapters(recipe: Recipe, number: float, data: Data) -> Recipe:
    changed = _with_parts(recipe, lambda part: Adapted(part=part, width=int(number)))
    # norms learn too, as in the paper
    return _faster(_moving(changed, (*HEAD, "*.adapter.*", "*norm.*")), 10)


def _mixout(recipe: Recipe, number: float, data: Data) -> Recipe:
    stacks = [stack for stack in (recipe.model.encoder, recipe.model.decoder) if stack is not None]
    if any(stack.reversible for stack in stacks):
        raise SpecError("tactic 'mixout': a reversible stack finds its inputs again, and would find other weights")
    return recipe.replace(training=recipe.training.replace(noise=Mixout(p=number)))


def _mix(recipe: Recipe, number: float, data: Data) -> Recipe:
    model = recipe.model
    side = "encoder" if model.decoder is None else "decoder"
    stack = getattr(model, side)
    if type(stack) is not Stack:
        raise SpecError(f"tactic 'mix': {side} of kind {stack.kind!r} is no plain stack of layers")
    recipe = recipe.replace(model=model.replace(**{side: LayerMix.of(stack)}))
    groups = recipe.training.groups
    # where only some parameters move, the shares of layers are among them
    return (
        _grouped(recipe, groups.replace(names=(*groups.names, "*.layer_*")))
        if isinstance(groups, SomeWeights)
        else recipe
    )


def _three(recipe: Recipe, number: float, data: Data) -> Recipe:
    head = recipe.model.head
    if not isinstance(head, PoolingHead):
        raise SpecError(f"tactic 'three': head {head.kind!r} asks every token, and pools none")
    return recipe.replace(model=recipe.model.replace(head=head.replace(pool="three")))


def _balanced(recipe: Recipe, number: float, data: Data) -> Recipe:
    """Weigh classes by how rare they are: each counts the same in the sum over all rows."""
    objective = recipe.objective
    if not isinstance(objective, Classify | ClassifyMany):
        raise SpecError(f"tactic 'balanced': objective {objective.kind!r} has no classes of rows to weigh")
    split: Any = data.split("train")
    counts = np.zeros(len(split.classes))
    for start in range(0, len(split), _COUNTED):
        examples = split.examples(np.arange(start, min(start + _COUNTED, len(split))))
        labels = np.array([label for *_, label in examples])
        counts += labels.sum(0) if labels.ndim > 1 else np.bincount(labels, minlength=len(counts))
    share = len(split) - counts if isinstance(objective, ClassifyMany) else len(split) / len(counts)
    weights = tuple((share / np.maximum(counts, 1)).tolist())
    return recipe.replace(objective=objective.replace(weights=weights))


def _with_parts(recipe: Recipe, change: Callable[[Part], Part]) -> Recipe:
    """Change every part of every block."""
    model = recipe.model
    for stack in ("encoder", "decoder"):
        depth = getattr(model, stack)
        if depth is None:
            continue
        if not hasattr(depth, "blocks"):
            raise SpecError(f"{stack}: of kind {depth.kind!r}, which is no list of blocks that something could join")
        blocks = tuple(block.replace(parts=tuple(map(change, block.parts))) for block in depth.blocks)
        model = model.replace(**{stack: depth.replace(blocks=blocks)})
    return recipe.replace(model=model)


def _moving(recipe: Recipe, names: tuple[str, ...]) -> Recipe:
    return _grouped(recipe, SomeWeights(names=names))


def _grouped(recipe: Recipe, groups: object) -> Recipe:
    return recipe.replace(training=recipe.training.replace(groups=groups))


def _faster(recipe: Recipe, times: float) -> Recipe:
    """Return larger steps, for what is new and small."""
    optimiser = recipe.training.optimiser
    return recipe.replace(training=recipe.training.replace(optimiser=optimiser.replace(lr=optimiser.lr * times)))


def blocks_of(model: Model) -> list[str]:
    """Return the beginnings of the names of all blocks, from the lowest to the highest."""
    stacks = [(stack, getattr(model, stack)) for stack in ("encoder", "decoder")]
    return [f"{stack}.blocks.{i}." for stack, depth in stacks for i in range(len(getattr(depth, "blocks", ())))]


CHANGES: Mapping[str, Change] = {
    "plain": _plain,
    "frozen": _frozen,
    "bitfit": _bitfit,
    "layer-wise": _layer_wise,
    "gradual": _gradual,
    "slanted": _slanted,
    "ulmfit": _ulmfit,
    "two-stage": _two_stage,
    "lora": _lora,
    "adapters": _adapters,
    "mixout": _mixout,
    "mix": _mix,
    "three": _three,
    "balanced": _balanced,
    "reinit": _plain,
    "scratch": _plain,
}
