"""Relatives that act: environments, rollouts, and the run that learns from rewards."""

from kinfolk.contests.acting.environment import World, open_world
from kinfolk.contests.acting.recipe import as_policy
from kinfolk.contests.acting.run import resume, train

__all__ = ["World", "as_policy", "open_world", "resume", "train"]
