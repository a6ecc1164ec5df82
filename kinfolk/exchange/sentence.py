"""The layout of sentence-embedding folders: a body, and a list of modules that make one vector of its states."""

import json
from pathlib import Path

from kinfolk.core import durable
from kinfolk.core.errors import CheckpointError
from kinfolk.exchange.config import read_json
from kinfolk.layers.head import Head
from kinfolk.layers.vector_head import VectorHead

MODULES = "modules.json"
LENGTHS = "sentence_bert_config.json"
_PACKAGE = "sentence_transformers.models."
_POOLS = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
_OTHERS = ("mean_sqrt_len_tokens", "weightedmean_tokens")


def read(folder: Path) -> VectorHead | None:
    """Return the head that a folder's modules say; None if it is not such a folder."""
    file = folder / MODULES
    if not file.is_file():
        return None
    rows = read_json(file)
    kinds = [str(row.get("type", "")).rpartition(".")[2] for row in rows]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(
            f"{file}: {' + '.join(kinds)} cannot be expressed (allowed: Transformer + Pooling + Normalize)"
        )
    if rows[0].get("path"):
        raise CheckpointError(
            f"{file}: path = {rows[0]['path']!r} of the Transformer; its files must stand beside {MODULES}"
        )
    pool = _pool(folder / str(rows[1].get("path", "")) / "config.json")
    return VectorHead(pool=pool, length="unit" if len(kinds) == 3 else "free")


def _pool(file: Path) -> str:
    values = read_json(file)
    named = values.get("pooling_mode")
    chosen = (
        [named]
        if isinstance(named, str)
        else [
            k.removeprefix("pooling_mode_") for k, on in values.items() if on is True and k.startswith("pooling_mode_")
        ]
    )
    names = _POOLS | {"cls": "first", "mean": "mean", "max": "max"}
    if len(chosen) != 1 or chosen[0] not in names:
        raise CheckpointError(
            f"{file}: pooling_mode = {chosen} cannot be expressed (allowed: one of {', '.join(_POOLS)})"
        )
    return names[chosen[0]]


def longest(folder: Path) -> int | None:
    """Return the most tokens of a text that a folder's model was made for; None if it does not say."""
    file = folder / LENGTHS
    found = read_json(file).get("max_seq_length") if file.is_file() else None
    return found if isinstance(found, int) and found > 0 else None


def bare(head: Head, again: Head) -> Head:
    """Return the head to compare with when a body is written: pooling that has weights of none is not in its config."""
    plain = isinstance(head, VectorHead) and isinstance(again, VectorHead) and head.activation == "none"
    return head if plain else again


def write(head: Head, d_model: int, folder: Path) -> None:
    """Write the modules of a head that pools, so that it pools elsewhere too."""
    if not isinstance(head, VectorHead) or head.activation != "none":
        return
    (folder / "1_Pooling").mkdir(exist_ok=True)
    kinds = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *([("2_Normalize", "Normalize")] if head.length == "unit" else []),
    ]
    rows = [{"idx": i, "name": str(i), "path": path, "type": _PACKAGE + kind} for i, (path, kind) in enumerate(kinds)]
    values = {f"pooling_mode_{name}": _POOLS.get(name) == head.pool for name in (*_POOLS, *_OTHERS)}
    _json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": d_model, **values})
    _json(folder / MODULES, rows)


def _json(file: Path, what: object) -> None:
    durable.write(file, json.dumps(what, indent=2) + "\n")
