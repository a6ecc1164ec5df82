"""Relatives that act: environments, rollouts, and the run that learns from rewards."""

from kinfolk.rl.environment import World, open_world
from kinfolk.rl.recipe import as_policy
from kinfolk.rl.run import resume, train

__all__ = ["World", "as_policy", "open_world", "resume", "train"]
