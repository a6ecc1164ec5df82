"""`Run` over a folder that Hugging Face's libraries wrote."""

import functools
from pathlib import Path

from kinfolk.core.errors import SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.data import Tokenizer
from kinfolk.family.recipe import Recipe
from kinfolk.models.model import Model, Transformer
from kinfolk.runs.folder import CONFIG
from kinfolk.runs.huggingface.folder import Imported, open_folder
from kinfolk.runs.huggingface.recipe import recipe_of_import
from kinfolk.runs.run import Run


class HuggingFaceRun(Run):
    """A folder that Hugging Face's libraries wrote: config.json, weights, a tokenizer."""

    mark = CONFIG

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._unused: Imported | None = None

    @functools.cached_property
    def imported(self) -> Imported:
        """What the folder holds."""
        self._unused = open_folder(self.path)
        return self._unused

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The model, and a recipe to go on with it."""
        return recipe_of_import(self.imported)

    @functools.cached_property
    def own_tokenizer(self) -> Tokenizer | None:
        """Its tokenizer, with the roles that the folder gives to its tokens."""
        return self.imported.own_tokenizer()

    @property
    def spec(self) -> Recipe | Model:
        """The model: its training is not known."""
        return self.recipe.model

    @property
    def generation(self) -> GenerationIds:
        """The special tokens of its configuration."""
        return self.imported.generation

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of classes in its configuration."""
        return self.imported.classes

    def model(self, average: int = 0) -> Transformer:
        """Return the model; its weights are mapped from the file."""
        if average:
            raise SpecError(f"--average: {self.path} has no checkpoints to average")
        first = self.imported
        # who has a model may change it, so that each call gives another one
        model = first.model if self._unused is not None else open_folder(self.path).model
        self._unused = None
        return model
