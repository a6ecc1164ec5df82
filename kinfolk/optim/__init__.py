"""How the weights move: the optimiser, its learning rate over time, and the numbers of a training run."""

from kinfolk.optim.groups import Groups, HeadFirst, LayerWise, Some, Together
from kinfolk.optim.lamb import LAMB
from kinfolk.optim.lion import Lion
from kinfolk.optim.muon import Muon
from kinfolk.optim.optimiser import Adafactor, Adam, AdamW, Optimiser, named_groups
from kinfolk.optim.schedule import Constant, Cooldown, Cosine, InverseSqrt, Linear, Schedule, SlantedTriangular
from kinfolk.optim.training import Training

__all__ = [
    "LAMB",
    "Adafactor",
    "Adam",
    "AdamW",
    "Constant",
    "Cooldown",
    "Cosine",
    "Groups",
    "HeadFirst",
    "InverseSqrt",
    "LayerWise",
    "Linear",
    "Lion",
    "Muon",
    "Optimiser",
    "Schedule",
    "SlantedTriangular",
    "Some",
    "Together",
    "Training",
    "named_groups",
]
