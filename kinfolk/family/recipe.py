"""A recipe: the model, what it learns from, and how it is trained."""

from kinfolk.core.spec import Spec
from kinfolk.models.model import Model
from kinfolk.objectives.objective import Objective
from kinfolk.optim.training import Training


class Recipe(Spec):
    """Everything that a relative is, as plain data."""

    name: str
    model: Model
    objective: Objective
    training: Training = Training()
