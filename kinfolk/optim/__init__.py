"""Optimisers, learning-rate schedules, parameter groups and the hyperparameters of training."""

from kinfolk.optim.groups import Groups, HeadFirst, LayerWise, SomeWeights, Together
from kinfolk.optim.lamb import LAMB
from kinfolk.optim.lion import Lion
from kinfolk.optim.muon import Muon
from kinfolk.optim.optimiser import Adafactor, Adam, AdamW, Optimiser, named_groups
from kinfolk.optim.schedule import Constant, Cooldown, Cosine, InverseSqrt, LinearDecay, Schedule, SlantedTriangular
from kinfolk.optim.schedule_free import ScheduleFree
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
    "LinearDecay",
    "Lion",
    "Muon",
    "Optimiser",
    "Schedule",
    "ScheduleFree",
    "SlantedTriangular",
    "SomeWeights",
    "Together",
    "Training",
    "named_groups",
]
