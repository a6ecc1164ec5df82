"""What fine-tuning begins with: a run, or a folder that Hugging Face's libraries wrote."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from kinfolk.core import manifest
from kinfolk.core.errors import CheckpointError
from kinfolk.core.plain import load as load_spec
from kinfolk.core.plain import read_toml
from kinfolk.data import Tokenizer
from kinfolk.family import registry
from kinfolk.family.recipe import Recipe
from kinfolk.models.model import Model
from kinfolk.models.room import check_size
from kinfolk.runs.huggingface.folder import CONFIG, open_folder
from kinfolk.runs.huggingface.recipe import recipe_of, recipe_of_import
from kinfolk.train import folder
from kinfolk.train.checkpoint import weights_file
from kinfolk.train.knowing import own


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A model that knows something: its recipe, its weights by name, its tokenizer if it has one.

    classes: the names of the classes its head tells apart, if it does.
    """

    path: Path
    recipe: Recipe
    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer | None = None
    classes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called."""
        return self.path.name

    @functools.cached_property
    def digest(self) -> str:
        """A hash of its weights."""
        found = hashlib.blake2b(digest_size=8)
        for name in sorted(self.weights):
            found.update(name.encode())
            found.update(self.weights[name].detach().contiguous().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest()


def open_source(path: str | Path) -> Source:
    """Read a run, a saved model or a downloaded folder; nothing of it is run."""
    path = Path(path)
    if (path / folder.SPEC).is_file():
        return _open_run(path)
    if (path / CONFIG).is_file():
        return _open_folder(path)
    what = "no such folder" if not path.exists() else f"neither {folder.SPEC} nor {CONFIG} is here"
    raise CheckpointError(f"{path}: {what}; expected a run, or a folder of a checkpoint with {CONFIG}")


def _open_run(path: Path) -> Source:
    about: dict[str, Any] = folder.opened(path) if (path / folder.RUN).is_file() else {}
    registry.load()
    whole = "model" in read_toml(path / folder.SPEC)
    spec = path / folder.SPEC
    recipe = own(load_spec(Recipe, spec), path) if whole else recipe_of(load_spec(Model, spec), path.name)
    words = path / folder.TOKENIZER
    tokenizer = Tokenizer.load(words) if words.is_file() else None
    weights = weights_file(path)
    check_size(recipe.model, weights)
    return Source(path, recipe, _weights(weights), tokenizer, tuple(about.get("classes", ())))


def _open_folder(path: Path) -> Source:
    imported = open_folder(path)
    weights, tokenizer = imported.model.state_dict(), imported.own_tokenizer()
    return Source(path, recipe_of_import(imported), weights, tokenizer, imported.classes)


def _weights(file: Path) -> dict[str, Tensor]:
    try:
        with manifest.verifying(file):
            return load_file(file)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file}: cannot be read as safetensors: {error}") from None
