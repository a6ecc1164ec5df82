"""Generated tasks with labels, opened by name: `parity:length=16`, `listops:length=500`.

The Long Range Arena's five are `listops`, `text`, `retrieval`, `shapes` (or any folder of images) and `pathfinder`.
MAD's six are `in-context-recall`, `noisy-recall`, `fuzzy-recall`, `selective-copying`, `compression`, `memorisation`;
zoology's is `mqar`.
"""

import importlib

from kinfolk.data.splits.split import Data

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
"""The module of each task; its function `open_NAME` takes the name with numbers, and a seed."""


def open_labelled(name: str, seed: int) -> Data:
    """Open a task; its module is imported then, because a process that trains or serves needs one of them or none."""
    task = name.partition(":")[0]
    module = importlib.import_module(f"{__name__}.{LABELLED[task]}")
    opened: Data = getattr(module, f"open_{task.replace('-', '_')}")(name, seed)
    return opened
