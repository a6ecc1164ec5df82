"""Changes of a recipe by name: `gpt2+rotary`, `gpt2+alibi`, `gpt2+rms-norm`, `gpt2+muon`, `gpt2+model.dropout=0.1`.

A change is `path=value` as `--set` has it, the name of a relative (what that relative changes against its parent), or
the name of a kind: it replaces what the recipe has on the kind's axis.
"""

import re
from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.nested import nested
from kinfolk.core.paths import set_path
from kinfolk.core.plain import to_plain
from kinfolk.core.spec import Spec, axes_of, choices
from kinfolk.family.assembly import with_mixer
from kinfolk.family.recipe import Recipe
from kinfolk.layers.mixers.attention_extras import Extra
from kinfolk.layers.mixers.extended_attention import ExtendedAttention
from kinfolk.layers.positions.position import DepthTime, Learned, NoPosition, Position, Sinusoid
from kinfolk.optim import Constant, Optimiser, ScheduleFree, Training

# a plus sign before a letter: 1e+5 is a number
_PLUS = re.compile(r"\+(?=[A-Za-z])")

ADDED = (Sinusoid, Learned, DepthTime)
"""Positions that are added to embeddings; the others act inside attention."""


def parted(name: str) -> tuple[str, tuple[str, ...]]:
    """Take `relative+change+change` apart."""
    base, *changes = _PLUS.split(name)
    return base, tuple(changes)


def with_kind(recipe: Recipe, name: str) -> Recipe:
    """Return a recipe with a kind in every place of its model that has another choice of the same axis.

    A place that is empty ("none") stays so. What attention may have besides (`Extra`) is added to every attention.
    Positions are the exception: those that act inside attention go into every
    attention and leave the embedding without, and those that are added go the other way round.
    """
    if name in choices(Extra):
        extra: Any = choices(Extra)[name]()
        return recipe.replace(model=with_mixer(recipe.model, lambda look: ExtendedAttention.of(look, extra)))
    if name in choices(Optimiser):
        optimiser: Any = choices(Optimiser)[name]()
        return recipe.replace(training=_trained_by(recipe.training, optimiser))
    axes = {axis for axis in _axes(recipe) if name in choices(axis)}
    nearest = [axis for axis in axes if not any(other is not axis and issubclass(other, axis) for other in axes)]
    if len(nearest) != 1:
        known = sorted({kind for axis in _axes(recipe) for kind in choices(axis)})
        where = " and ".join(sorted(axis.__name__ for axis in nearest))
        problem = (
            f"is a choice of {where}: say where, as path={name}" if nearest else f"is not known{suggest(name, known)}"
        )
        raise SpecError(f"{recipe.name}+{name}: {name!r} {problem}")
    (axis,) = nearest
    return _positioned(recipe, name) if axis is Position else _replaced(recipe, axis, name)


def _trained_by(training: Training, optimiser: Optimiser) -> Training:
    """Return a training with another optimiser, at that one's own rate; a schedule-free one gets a rate that stays."""
    if isinstance(optimiser, ScheduleFree):
        training = training.replace(schedule=Constant(warmup=training.schedule.warmup))
    return training.replace(optimiser=optimiser)


def _axes(recipe: Recipe) -> set[type[Spec]]:
    return {axis for _, part in nested(recipe.model, "model") for axis in axes_of(type(part))}


def _replaced(recipe: Recipe, axis: type[Spec], name: str) -> Recipe:
    places = [path for path, part in nested(recipe.model, "model") if isinstance(part, axis) and part.kind != "none"]
    if not places:
        raise SpecError(f"{recipe.name}+{name}: the model has no {axis.__name__} that could be {name!r}")
    for path in places:
        recipe = set_path(recipe, path, name)
    return recipe


def _positioned(recipe: Recipe, name: str) -> Recipe:
    added = issubclass(choices(Position)[name], ADDED)
    inside = [
        path
        for path, part in nested(recipe.model, "model")
        if isinstance(part, Position) and ".parts[" in path and path.endswith(".position")
    ]
    if not inside and not added:
        raise SpecError(f"{recipe.name}+{name}: no layer of the model has positions of its own")
    outside = [path for path, part in nested(recipe.model, "model") if path.endswith("embedding.position")]
    for paths, kind in ((outside, name if added else NoPosition.kind), (inside, NoPosition.kind if added else name)):
        for path in paths:
            recipe = set_path(recipe, path, kind)
    return recipe


def like(recipe: Recipe, parent: Recipe, child: Recipe) -> Recipe:
    """Return a recipe changed as a child changes its parent: every field of the model in which those two differ."""
    body = _merged(to_plain(recipe.model), to_plain(parent.model), to_plain(child.model))
    return set_path(recipe, "model", body)


def _merged(own: Any, before: Any, after: Any) -> Any:
    """Change `own` as `before` became `after`, as deep as all three have the same form."""
    if before == after:
        return own
    each = (own, before, after)
    if all(isinstance(value, dict) for value in each) and before.get("kind") == after.get("kind") == own.get("kind"):
        kept = {key: value for key, value in own.items() if key in after or key not in before}
        return kept | {
            key: _merged(own.get(key, before.get(key)), before.get(key), value)
            for key, value in after.items()
            if before.get(key) != value
        }
    if all(isinstance(value, list) for value in each) and len(own) == len(before) == len(after):
        return [_merged(*items) for items in zip(own, before, after, strict=True)]
    return after
