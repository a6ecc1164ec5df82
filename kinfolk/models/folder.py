"""Model checkpoints as folders: `spec.toml`, `model.safetensors`, and `tokenizer.json` if there is one."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kinfolk.core import durable, manifest
from kinfolk.core.errors import CheckpointError, suggest
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.core.plain import dumps
from kinfolk.models.model import Transformer

GENERATION = "generation"
"""In the metadata of the weights: the special tokens of a model that does not have those of tokenizers trained here."""
SPEC, WEIGHTS, TOKENIZER = "spec.toml", "model.safetensors", "tokenizer.json"


def save_model(model: Transformer, folder: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write a model; each file is complete or not there."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # the new files are not what an old manifest lists
    durable.remove(folder / manifest.NAME)
    with durable.appearing(folder / WEIGHTS) as aside:
        tensors = {name: x.detach().contiguous() for name, x in model.state_dict().items()}
        own = model.generation != GenerationIds()
        save_file(tensors, aside, {GENERATION: json.dumps(model.generation.plain())} if own else None)
    durable.write(folder / SPEC, dumps(model.spec))
    if tokenizer is not None and Path(tokenizer) != folder / TOKENIZER:
        durable.copy(Path(tokenizer), folder / TOKENIZER)
    manifest.create(folder)
    return folder


def load_weights(model: Transformer, file: str | Path) -> None:
    """Fill a model from a safetensors file. If any tensor is missing, unknown or misshapen, nothing is loaded."""
    own = model.state_dict()
    try:
        with manifest.verifying(Path(file)), safe_open(file, framework="pt") as tensors:
            names = set(tensors.keys())
            problems = [f"missing {name}" for name in sorted(own.keys() - names)]
            problems += [f"unknown {name}{suggest(name, own)}" for name in sorted(names - own.keys())]
            for name in sorted(own.keys() & names):
                shape = tuple(tensors.get_slice(name).get_shape())
                if shape != tuple(own[name].shape):
                    problems.append(f"{name} has shape {shape}, the spec says {tuple(own[name].shape)}")
            if problems:
                raise CheckpointError(f"{file} does not fit the model: " + "; ".join(problems[:8]))
            with torch.no_grad():
                for name, x in own.items():
                    x.copy_(tensors.get_tensor(name))
                    # a sum is not a number if any of its terms is not, and takes one pass
                    if x.is_floating_point() and bool(x.sum().isnan()):
                        raise CheckpointError(f"{file}: {name} holds values that are not numbers (NaN)")
            if GENERATION in (tensors.metadata() or {}):
                generation = json.loads(tensors.metadata()[GENERATION])
                model.generation = GenerationIds.from_plain(generation, f"{file}: {GENERATION}")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}") from None
