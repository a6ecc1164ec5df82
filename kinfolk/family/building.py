"""Building and saving the model of a recipe."""

from pathlib import Path

from kinfolk.core.plain import load as load_spec
from kinfolk.family.recipe import Recipe
from kinfolk.models.folder import save_model
from kinfolk.models.model import Model, Transformer, build_model


def build(spec: Recipe | Model, seed: int = 0) -> Transformer:
    """Build the model of a recipe, its weights drawn from a seed."""
    return build_model(spec.model if isinstance(spec, Recipe) else spec, seed)


def save(model: Transformer, folder: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write a model as spec.toml and model.safetensors, with its tokenizer if it has one."""
    return save_model(model, folder, tokenizer)


def read_recipe(file: str | Path) -> Recipe:
    """Read a recipe from TOML."""
    return load_spec(Recipe, file)
