"""Worlds and recipes small enough for tests."""

from typing import Any

from kinfolk.contests.acting import World, open_world
from kinfolk.contests.acting.recipe import policy
from kinfolk.core.paths import set_path
from kinfolk.family.recipe import Recipe
from kinfolk.train import RunOptions

QUIET = RunOptions(quiet=True, tensorboard=False, device="cpu", threads=1)
MEMORY = {"segment": 6, "memory": 8}
SMALL = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_len": 64}
SHORT = {
    "training.steps": 8,
    "training.batch_size": 5,
    "training.length": 6,
    "training.eval_every": 3,
    "training.eval_batches": 1,
    "training.save_every": 1,
    "objective.epochs": 3,
}


def toy(name: str = "gtrxl", env: str | World = "cue-recall:corridor=2,cues=3", **changes: Any) -> tuple[Recipe, World]:
    """Return a recipe that acts, and where."""
    world = open_world(env) if isinstance(env, str) else env
    remembers = MEMORY if name in ("gtrxl", "trxl-i", "transformer-xl") else {}
    recipe = policy(name, world, **SMALL | remembers)
    for path, value in (SHORT | changes).items():
        recipe = set_path(recipe, path, value)
    return recipe, world
