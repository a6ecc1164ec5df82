"""Files to tokens to prepared shards to batches; and data that needs no files.

Names are imported when first used: preparing needs no torch, and help needs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.data.batches import Batches
    from kinfolk.data.loader import Loader
    from kinfolk.data.opening import open_data
    from kinfolk.data.preparation import Preparation
    from kinfolk.data.preparing import prepare
    from kinfolk.data.split import Data, Split
    from kinfolk.data.tokenizer import Tokenizer

_HOME = {
    "Batches": "batches",
    "Data": "split",
    "Loader": "loader",
    "Preparation": "preparation",
    "Split": "split",
    "Tokenizer": "tokenizer",
    "open_data": "opening",
    "prepare": "preparing",
}

__all__ = ["Batches", "Data", "Loader", "Preparation", "Split", "Tokenizer", "open_data", "prepare"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
