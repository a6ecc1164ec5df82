"""Sentence-embedding folders (sentence-transformers): a body, and the modules that pool its states into a vector.

A head that judges the pooled vector, which fine-tuning of such a checkpoint makes, is a further module: Dense.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kinfolk.core import durable
from kinfolk.core.errors import CheckpointError
from kinfolk.layers.heads.class_head import ClassHead, PoolingHead, RegressionHead
from kinfolk.layers.heads.head import Head
from kinfolk.layers.heads.vector_head import VectorHead
from kinfolk.models.model import Transformer
from kinfolk.ops.pooled_vector import Pool
from kinfolk.runs.huggingface.config import read_json
from kinfolk.runs.huggingface.tensors import WEIGHTS

MODULES = "modules.json"
LENGTHS = "sentence_bert_config.json"
_PACKAGE = "sentence_transformers.models."
_POOLS: dict[str, Pool] = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
_OTHERS = ("mean_sqrt_len_tokens", "weightedmean_tokens")


def read(folder: Path) -> VectorHead | None:
    """Return the head that a folder's modules say; None if it is not such a folder."""
    file = folder / MODULES
    if not file.is_file():
        return None
    rows = read_json(file)
    kinds = [str(row.get("type", "")).rpartition(".")[2] for row in rows]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in ([], ["Normalize"], ["Dense"]):
        raise CheckpointError(
            f"{file}: {' + '.join(kinds)} cannot be expressed (allowed: Transformer + Pooling, then Normalize or Dense)"
        )
    if rows[0].get("path"):
        raise CheckpointError(
            f"{file}: path = {rows[0]['path']!r} of the Transformer; its files must be beside {MODULES}"
        )
    pool = _pool(folder / str(rows[1].get("path", "")) / "config.json")
    return VectorHead(pool=pool, length="unit" if kinds[2:] == ["Normalize"] else "free")


def read_dense(folder: Path) -> dict[str, Tensor] | None:
    """Return the weight and the bias of a folder's Dense module; None if it has none."""
    rows = read_json(folder / MODULES) if (folder / MODULES).is_file() else []
    place = next((str(row.get("path", "")) for row in rows if str(row.get("type", "")).endswith(".Dense")), None)
    if place is None:
        return None
    inside = folder / Path(place).name
    values = read_json(inside / "config.json")
    if str(values.get("activation_function", "")).rpartition(".")[2] != "Identity" or not values.get("bias", True):
        raise CheckpointError(f"{inside / 'config.json'}: only a Dense module with bias and Identity can be expressed")
    try:
        tensors = load_file(inside / WEIGHTS)
        return {"weight": tensors["linear.weight"], "bias": tensors["linear.bias"]}
    except (SafetensorError, OSError, KeyError) as error:
        raise CheckpointError(f"{inside / WEIGHTS}: cannot be read as a Dense module: {error}") from None


def judged(model: Transformer, dense: Mapping[str, Tensor]) -> Transformer:
    """Return a model that judges the vectors of another with a Dense module: classes, or of one output a number."""
    pool, n = cast(VectorHead, model.spec.head).pool, len(dense["bias"])
    head: PoolingHead = RegressionHead(pool=pool) if n == 1 else ClassHead(n_classes=n, pool=pool)
    judge = Transformer(model.spec.replace(head=head))
    state = model.state_dict() | {f"head.output.{name}": x for name, x in dense.items()}
    wrong = [name for name, x in judge.state_dict().items() if name not in state or state[name].shape != x.shape]
    if wrong:
        raise CheckpointError(f"{wrong[0]}: the Dense module does not fit the body")
    judge.load_state_dict(state, assign=True)
    return judge


def pooling_of(head: Head) -> VectorHead | None:
    """Return the head that only pools, of one that judges a pooled vector in one layer; None if it is no such head."""
    if not isinstance(head, PoolingHead) or head.activation != "none" or head.pool == "three":
        return None
    return VectorHead(pool=head.pool)


def _pool(file: Path) -> Pool:
    values = read_json(file)
    named = values.get("pooling_mode")
    chosen = (
        [named]
        if isinstance(named, str)
        else [
            k.removeprefix("pooling_mode_") for k, on in values.items() if on is True and k.startswith("pooling_mode_")
        ]
    )
    names: dict[str, Pool] = _POOLS | {"cls": "first", "mean": "mean", "max": "max"}
    if len(chosen) != 1 or chosen[0] not in names:
        raise CheckpointError(
            f"{file}: pooling_mode = {chosen} cannot be expressed (allowed: one of {', '.join(_POOLS)})"
        )
    return names[chosen[0]]


def longest(folder: Path) -> int | None:
    """Return the most tokens of a text that a folder's model was made for; None if it does not say."""
    file = folder / LENGTHS
    length = read_json(file).get("max_seq_length") if file.is_file() else None
    return length if isinstance(length, int) and length > 0 else None


def bare(head: Head, again: Head) -> Head:
    """Return the head to compare with when a body is written: pooling that has weights of none is not in its config."""
    plain = isinstance(head, VectorHead) and isinstance(again, VectorHead) and head.activation == "none"
    return head if plain else again


def write(head: Head, d_model: int, folder: Path, dense: Mapping[str, Tensor] | None = None) -> None:
    """Write the modules of a head that pools, so that it pools elsewhere too; `dense` is what judges the vector."""
    if not isinstance(head, VectorHead) or head.activation != "none":
        return
    (folder / "1_Pooling").mkdir(exist_ok=True)
    kinds = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *([("2_Normalize", "Normalize")] if head.length == "unit" else []),
        *([("2_Dense", "Dense")] if dense is not None else []),
    ]
    rows = [{"idx": i, "name": str(i), "path": path, "type": _PACKAGE + kind} for i, (path, kind) in enumerate(kinds)]
    values = {f"pooling_mode_{name}": _POOLS.get(name) == head.pool for name in (*_POOLS, *_OTHERS)}
    _json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": d_model, **values})
    _json(folder / MODULES, rows)
    if dense is not None:
        (folder / "2_Dense").mkdir(exist_ok=True)
        n, width = dense["weight"].shape
        settings = {"in_features": width, "out_features": n, "bias": True}
        _json(
            folder / "2_Dense" / "config.json", settings | {"activation_function": "torch.nn.modules.linear.Identity"}
        )
        with durable.appearing(folder / "2_Dense" / WEIGHTS) as aside:
            save_file({f"linear.{name}": x.detach().contiguous() for name, x in dense.items()}, aside)


def _json(file: Path, what: object) -> None:
    durable.write(file, json.dumps(what, indent=2) + "\n")
