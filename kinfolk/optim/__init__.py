"""How the weights move: the optimiser, its learning rate over time, and the numbers of a training run."""

from kinfolk.optim.optimiser import Adam, AdamW, Optimiser, named_groups
from kinfolk.optim.schedule import Constant, Cosine, InverseSqrt, Linear, Schedule
from kinfolk.optim.training import Training

__all__ = [
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "InverseSqrt",
    "Linear",
    "Optimiser",
    "Schedule",
    "Training",
    "named_groups",
]
