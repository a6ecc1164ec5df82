"""Attention maps and other taps of one pass over a text, layer by layer, with its tokens."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError
from kinfolk.data import Tokenizer
from kinfolk.layers.linear_maps import bare
from kinfolk.layers.mixers.attention import CrossAttention
from kinfolk.models.model import Model, Transformer
from kinfolk.train.evaluate import scoring

WEIGHTS, HIDDEN = "weights", "hidden"
MOST = 512
"""Tokens of a text that are looked at: maps grow with the square of them."""


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionMap:
    """The attention of one layer: weights [H, L, M], and whose tokens queries and keys are.

    keys: "same", "source" (a decoder looking at its encoder) or "slots" (keys that are no tokens, as of a Linformer).
    """

    path: str
    weights_HLM: Tensor
    side: str
    keys: str


@dataclasses.dataclass(frozen=True, eq=False)
class Special:
    """What is special to a relative in one layer: the name of the tap, and its value for this text."""

    path: str
    name: str
    value: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class ModelSight:
    """A text as a model sees it. `tokens` and `source` are ids; a model without an encoder-decoder has no source."""

    tokens: tuple[int, ...]
    source: tuple[int, ...]
    labels: tuple[str, ...]
    source_labels: tuple[str, ...]
    maps: tuple[AttentionMap, ...]
    specials: tuple[Special, ...]


def look(model: Transformer, tokenizer: Tokenizer, text: str, target: str | None = None) -> ModelSight:
    """Run a model on a text and keep what its layers report.

    An encoder-decoder reads the text as its source; without a target it writes one, the likeliest, and is looked at
    while it reads that.
    """
    ids = tokenizer.encode(text)
    if not ids:
        raise DataError("there is no text to look at")
    source: list[int] = []
    if model.spec.topology == "encoder-decoder":
        source = [*ids[: MOST - 1], tokenizer.eos]
        ids = _target(model, tokenizer, source, target)
    elif target is not None:
        raise DataError(f"a model of topology {model.spec.topology!r} takes one text, got two")
    if model.spec.topology != "encoder":
        ids = [tokenizer.bos, *ids]
    return see(model, tokenizer, ids[: min(MOST, model.limit or MOST)], source)


def see(model: Transformer, tokenizer: Tokenizer, ids: Sequence[int], source: Sequence[int] = ()) -> ModelSight:
    """Run a model on token ids and keep what its layers report."""
    rows = torch.tensor([list(ids)])
    pair = torch.tensor([list(source)]) if source else None
    with scoring(model):
        taps = model.run(Batch(index=torch.zeros(1, dtype=torch.long), tokens=rows, source=pair), taps=True).taps
    maps, specials = [], []
    for path, value in taps.items():
        place, _, name = path.rpartition(".")
        if name == WEIGHTS:
            maps.append(_map(model.spec, place, value[0], len(ids), len(source)))
        elif name != HIDDEN:
            specials.append(Special(place, name, value))
    labels, source_labels = _labels(tokenizer, ids), _labels(tokenizer, source)
    return ModelSight(tuple(ids), tuple(source), labels, source_labels, tuple(maps), tuple(specials))


def _target(model: Transformer, tokenizer: Tokenizer, source: list[int], target: str | None) -> list[int]:
    if target is not None:
        return [*tokenizer.encode(target), tokenizer.eos]
    from kinfolk.decoding import generate

    return generate(model, [source], min(64, 2 * len(source)), greedy=True, ids=tokenizer.generation)[0]


def _map(spec: Model, path: str, weights_HLM: Tensor, n_tokens: int, n_source: int) -> AttentionMap:
    side = "source" if n_source and path.startswith("encoder") else "tokens"
    n_own, n_keys = (n_source if side == "source" else n_tokens), weights_HLM.shape[2]
    if _crosses(spec, path):
        return AttentionMap(path, weights_HLM, side, "source" if n_keys == n_source else "slots")
    same = n_keys == n_own == weights_HLM.shape[1]
    return AttentionMap(path, weights_HLM, side, "same" if same else "slots")


def _crosses(spec: Model, path: str) -> bool:
    """Tell whether a part of a decoder looks at the encoder."""
    stack, *numbers = path.split(".")
    depth: Any = getattr(spec, stack, None)
    if stack != "decoder" or not hasattr(depth, "order") or len(numbers) != 2:
        return False
    block = depth.blocks[depth.order[min(int(numbers[0]), len(depth.order) - 1)]]
    return isinstance(bare(block.parts[int(numbers[1])]), CrossAttention)


def _labels(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, ...]:
    """Return each token as text that can be read alone; one that is no text by itself by its bytes' name."""
    found = []
    for i in ids:
        text = "" if i in tokenizer.special_ids else tokenizer.decode([i])
        found.append(text if text and "\ufffd" not in text else (tokenizer.inner.id_to_token(i) or str(i)))
    return tuple(found)
