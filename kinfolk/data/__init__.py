"""Files to tokens to prepared shards to batches; and data that needs no files.

The way of the data, package by package:

    files/        readers: a part of a file to documents, rows and images, or to what is bad in it
    tokenizers/   text to ids and back, and training a tokenizer
    preparing/    `prepare`: the work cut into jobs, done on all cores, to shards on disk with a manifest
    splits/       sequences, pairs and labelled examples, behind one base class
    batches/      batch number `step`, a pure function of (seed, step)
    generated/    tasks made on the fly, with labels or as pairs
    opening       `open_data`: tasks, embedded text, prepared folders, raw files

Names are imported when first used: preparing needs no torch, and help needs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.data.batches.batches import Batches
    from kinfolk.data.opening import open_data
    from kinfolk.data.preparing.preparation import Preparation
    from kinfolk.data.preparing.prepare import prepare
    from kinfolk.data.splits.split import Data, Split
    from kinfolk.data.tokenizers.tokenizer import Tokenizer

_HOME = {
    "Batches": "batches.batches",
    "Data": "splits.split",
    "Preparation": "preparing.preparation",
    "Split": "splits.split",
    "Tokenizer": "tokenizers.tokenizer",
    "open_data": "opening",
    "prepare": "preparing.prepare",
}

__all__ = ["Batches", "Data", "Preparation", "Split", "Tokenizer", "open_data", "prepare"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
