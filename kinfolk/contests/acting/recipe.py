"""The recipe of an actor: a relative with a policy head, an embedding of observations, and a training of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinfolk.contests.acting.environment import World
from kinfolk.core import paths
from kinfolk.core.errors import SpecError
from kinfolk.family import registry
from kinfolk.family.assembly import with_mixer
from kinfolk.family.building import read_recipe
from kinfolk.family.making import divided, make, numbers_of
from kinfolk.family.recipe import Recipe
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.embeddings.features import Features
from kinfolk.layers.heads.policy_head import GaussianHead, PolicyHead
from kinfolk.layers.positions.position import NoPosition
from kinfolk.objectives.policy import Policy
from kinfolk.optim import Adam, LinearDecay
from kinfolk.runs.run import Run

NUMBERS = {"max_len": 256, "segment": 32, "memory": 64, "dropout": 0.0}
"""Of relatives that have them, where nothing else is asked for: rollouts are short."""


def actor(what: str, world: World, size: str = "tiny", assignments: Sequence[str] = ()) -> Recipe:
    """Return the recipe of an actor by the name of a relative, by a spec file, or as a run has it.

    assignments: numbers of the relative's own function, and dotted paths of the recipe, as in `--set`.
    """
    if what in registry.relatives() or not (what.endswith(".toml") or Path(what).exists()):
        own, rest = divided(list(assignments), numbers_of(registry.entry(what).function), what)
        recipe = policy(what, world, size, **own)
    else:
        path, rest = Path(what), tuple(assignments)
        recipe = Run.open(path).recipe if path.is_dir() else read_recipe(path)
        recipe = recipe if isinstance(recipe.objective, Policy) else as_policy(recipe, world)
    return paths.assign(recipe, list(rest))


def policy(name: str, world: World, size: str = "tiny", **numbers: Any) -> Recipe:
    """Return the recipe of a relative that acts in a world; `numbers` are those of the relative's own function."""
    known = numbers_of(registry.entry(name).function)
    numbers = {key: value for key, value in NUMBERS.items() if key in known} | numbers
    recipe = as_policy(make(name, size=size, **numbers), world)
    # a rollout is a segment
    length = numbers.get("segment") or recipe.training.length
    return recipe.replace(training=recipe.training.replace(length=length))


def as_policy(recipe: Recipe, world: World) -> Recipe:
    """Let a relative act: observations come in, and logits of actions and a value go out.

    Nothing is dropped at random: what is learnt from is what was acted with.
    """
    model = recipe.model
    if model.topology != "decoder":
        raise SpecError(f"{recipe.name}: {model.topology}s do not act: an actor sees the past only; take a decoder")
    position = model.embedding.position if isinstance(model.embedding, Tokens) else NoPosition()
    embedding = model.embedding if world.n_tokens else Features(n_features=world.n_features, position=position)
    head = (PolicyHead if world.bounds is None else GaussianHead)(n_actions=world.n_actions)
    model = with_mixer(model, lambda look: look.replace(dropout=0.0))
    model = model.replace(vocab_size=world.n_tokens or 1, dropout=0.0, embedding=embedding, head=head)
    training = recipe.training.replace(
        batch_size=32,
        length=32,
        accumulate=1,
        clip=0.5,
        optimiser=Adam(lr=1e-3),
        schedule=LinearDecay(warmup=0.02),
        eval_every=100,
        eval_batches=4,
        precision="fp32",
        compile="off",
    )
    return recipe.replace(model=model, objective=Policy(), training=training)
