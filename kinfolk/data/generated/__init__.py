"""Generated tasks, opened by name: `copy:length=8`, `parity:length=16`, `listops:length=500`.

The Long Range Arena's five are `listops`, `text`, `retrieval`, `shapes` (or any folder of images) and `pathfinder`.
MAD's six are `in-context-recall`, `noisy-recall`, `fuzzy-recall`, `selective-copying`, `compression`, `memorisation`;
zoology's is `mqar`.
"""

import importlib

from kinfolk.data.splits.split import Data

PAIRS = dict.fromkeys(("copy", "queries", "reverse", "sort", "duplication", "addition", "language"), "pairs")
LABELLED = {
    "parity": "parity",
    "seek": "seek",
    "chase": "chase",
    "recall": "recall",
    "needle": "recall",
    "mqar": "mqar",
    "in-context-recall": "mad",
    "noisy-recall": "mad",
    "fuzzy-recall": "mad",
    "selective-copying": "mad",
    "compression": "mad",
    "memorisation": "mad",
    "listops": "listops",
    "logic": "logic",
    "text": "text",
    "prose": "text",
    "retrieval": "text",
    "shapes": "shapes",
    "pathfinder": "pathfinder",
}
GENERATED = PAIRS | LABELLED
"""The module that registers each task."""


def is_generated(name: str) -> bool:
    """Tell whether a name, with or without numbers, is that of a generated task."""
    return name.partition(":")[0] in GENERATED


def open_generated(name: str, seed: int = 0) -> Data:
    """Open a task, e.g. `sort:length=8,symbols=10,examples=5000`.

    Its module is imported then, because a process that trains or serves needs one of them or none.
    """
    from kinfolk.data.generated.task import TASKS

    base = name.partition(":")[0]
    importlib.import_module(f"{__name__}.{GENERATED[base]}")
    return TASKS[base].open(name, seed)
