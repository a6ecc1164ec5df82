"""What fine-tuning starts from: the recipe, pretrained weights and tokenizer of a run of any layout."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from kinfolk.data import Tokenizer
from kinfolk.family.recipe import Recipe
from kinfolk.runs.run import Run


@dataclasses.dataclass(frozen=True, eq=False)
class PretrainedSource:
    """A pretrained model: its recipe, its weights by name, its tokenizer if it has one.

    classes: the names of the classes of its head, if it has some.
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
        total = hashlib.blake2b(digest_size=8)
        for name in sorted(self.weights):
            total.update(name.encode())
            total.update(self.weights[name].detach().contiguous().flatten().view(torch.uint8).numpy().data)
        return total.hexdigest()


def open_source(path: str | Path | Run) -> PretrainedSource:
    """Read a run, a saved model or a Hugging Face folder."""
    run = Run.open(path)
    return PretrainedSource(run.path, run.recipe, run.weights(), run.own_tokenizer, run.class_names)
