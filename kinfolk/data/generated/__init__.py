"""Generated tasks with labels, opened by name: `parity:length=16`, `listops:length=500`.

The Long Range Arena's five are `listops`, `text`, `retrieval`, `shapes` (or any folder of images) and `pathfinder`.
MAD's six are `in-context-recall`, `noisy-recall`, `fuzzy-recall`, `selective-copying`, `compression`, `memorisation`;
zoology's is `mqar`.
"""

from collections.abc import Callable

from kinfolk.data.generated.chase import open_chase
from kinfolk.data.generated.listops import open_listops
from kinfolk.data.generated.logic import open_logic
from kinfolk.data.generated.mad import (
    open_compression,
    open_fuzzy_recall,
    open_in_context_recall,
    open_memorisation,
    open_noisy_recall,
    open_selective_copying,
)
from kinfolk.data.generated.mqar import open_mqar
from kinfolk.data.generated.parity import open_parity
from kinfolk.data.generated.pathfinder import open_pathfinder
from kinfolk.data.generated.recall import open_needle, open_recall
from kinfolk.data.generated.seek import open_seek
from kinfolk.data.generated.shapes import open_shapes
from kinfolk.data.generated.text import open_prose, open_retrieval, open_text
from kinfolk.data.splits.split import Data

LABELLED: dict[str, Callable[[str, int], Data]] = {
    "parity": open_parity,
    "seek": open_seek,
    "chase": open_chase,
    "recall": open_recall,
    "needle": open_needle,
    "mqar": open_mqar,
    "in-context-recall": open_in_context_recall,
    "noisy-recall": open_noisy_recall,
    "fuzzy-recall": open_fuzzy_recall,
    "selective-copying": open_selective_copying,
    "compression": open_compression,
    "memorisation": open_memorisation,
    "listops": open_listops,
    "logic": open_logic,
    "text": open_text,
    "prose": open_prose,
    "retrieval": open_retrieval,
    "shapes": open_shapes,
    "pathfinder": open_pathfinder,
}
"""What opens each task, given its name with numbers and a seed."""
