"""Acting in an environment: reinforcement learning from rewards, without files."""

from typing import ClassVar

from kinfolk.objectives.objective import Objective
from kinfolk.objectives.policy import Policy
from kinfolk.objectives.tasks.task import Task


class Acting(Task, kind="act"):
    """Actions that bring rewards (`kin train RELATIVE --env E`)."""

    objectives: ClassVar[tuple[type[Objective], ...]] = (Policy,)
    decides: ClassVar[str] = "cost"
