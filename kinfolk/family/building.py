"""From a recipe to a model, and to a folder and back."""

from pathlib import Path

from kinfolk.core import plugins
from kinfolk.core.plain import load as load_spec
from kinfolk.core.plain import read_toml
from kinfolk.family import registry
from kinfolk.family.recipe import Recipe
from kinfolk.models.folder import load_model, save_model
from kinfolk.models.model import Model, Transformer, build_model


def build(spec: Recipe | Model, seed: int = 0) -> Transformer:
    """Build the model of a recipe, its weights drawn from a seed."""
    return build_model(spec.model if isinstance(spec, Recipe) else spec, seed)


def save(model: Transformer, folder: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write a model as spec.toml and model.safetensors, with its tokenizer if it has one."""
    return save_model(model, folder, tokenizer)


def load(folder: str | Path) -> Transformer:
    """Read a model that `save` or a finished training run wrote."""
    if (Path(folder) / "run.toml").is_file():
        plugins.require(read_toml(Path(folder) / "run.toml").get("plugins", ()), folder)
    return load_model(folder, _spec_of)


def _spec_of(file: Path) -> Model:
    """Read a model's spec; a run folder has the whole recipe under the same name."""
    # kinds and relatives of this package must be defined before a file can name them
    registry.load()
    if "model" in read_toml(file):
        return load_spec(Recipe, file).model
    return load_spec(Model, file)


def read_recipe(file: str | Path) -> Recipe:
    """Read a recipe from TOML."""
    return load_spec(Recipe, file)
