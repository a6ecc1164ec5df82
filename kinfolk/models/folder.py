"""A model as a folder: `spec.toml`, `model.safetensors`, and `tokenizer.json` if it has one. Nothing is pickled."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kinfolk.core import durable
from kinfolk.core.errors import CheckpointError, suggest
from kinfolk.core.plain import dumps, load
from kinfolk.models.model import Model, Transformer

SPEC, WEIGHTS, TOKENIZER = "spec.toml", "model.safetensors", "tokenizer.json"


def save_model(model: Transformer, folder: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write a model; each file is complete or not there."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with durable.appearing(folder / WEIGHTS) as aside:
        save_file({name: x.detach().contiguous() for name, x in model.state_dict().items()}, aside)
    durable.write(folder / SPEC, dumps(model.spec))
    if tokenizer is not None and Path(tokenizer) != folder / TOKENIZER:
        durable.copy(Path(tokenizer), folder / TOKENIZER)
    return folder


def load_weights(model: Transformer, file: str | Path) -> None:
    """Fill a model from a safetensors file. If any tensor is missing, unknown or misshapen, nothing is loaded."""
    own = model.state_dict()
    try:
        with safe_open(file, framework="pt") as tensors:
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
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}") from None


def load_model(folder: str | Path, read_spec: Callable[[Path], Model] | None = None) -> Transformer:
    """Read a model that `save_model` wrote; `read_spec` reads its description if that is not a bare model's."""
    folder = Path(folder)
    for name in (SPEC, WEIGHTS):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: no {name} here, so this is not a saved model")
    spec = load(Model, folder / SPEC) if read_spec is None else read_spec(folder / SPEC)
    with torch.random.fork_rng(devices=[]):
        model = Transformer(spec)
    load_weights(model, folder / WEIGHTS)
    return model
