"""Generated tasks with labels, opened by name: `parity:length=16`."""

from collections.abc import Callable

from kinfolk.data.split import Data
from kinfolk.data.tasks.parity import open_parity

LABELLED: dict[str, Callable[[str, int], Data]] = {"parity": open_parity}
"""What opens each task, given its name with numbers and a seed."""
