"""From a run, a saved model or an export to graphs and to the engine that runs them."""

import tempfile
from pathlib import Path
from typing import Any

from kinfolk.core.errors import CheckpointError
from kinfolk.core.plain import read_toml
from kinfolk.family import registry
from kinfolk.family.building import load, read_recipe
from kinfolk.family.recipe import Recipe
from kinfolk.models.folder import WEIGHTS
from kinfolk.models.model import Transformer
from kinfolk.train import durable, folder
from kinfolk.train.run import load_learner
from kinfolk.use.onnx.engine import Engine
from kinfolk.use.onnx.export import to_int8, to_onnx
from kinfolk.use.onnx.folder import SPEC, TOKENIZER, About, is_exported

KEPT = "onnx"
"""Inside a run: the graphs that were made when they were first asked for."""


def export(what: Path, out: Path, int8: bool = False) -> About:
    """Write a run or a saved model as graphs; int8 as well is held to torch before it is quantised."""
    model, more = _read(what)
    if not int8:
        return to_onnx(model, out, **more)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".onnx-") as aside:
        to_onnx(model, Path(aside) / "fp32", **more)
        return to_int8(Path(aside) / "fp32", out)


def open_engine(what: Path, threads: int = 0) -> Engine:
    """Return the engine of an export; of a run, its graphs are made the first time and kept in it."""
    if is_exported(what):
        return Engine(what, threads)
    kept, weights = what / KEPT, what / WEIGHTS
    if not is_exported(kept) or not weights.is_file() or About.read(kept).source != durable.digest(weights):
        export(what, kept)
    return Engine(kept, threads)


def recipe_of(what: Path) -> Recipe:
    """Return the recipe that stands beside graphs."""
    registry.load()
    if "model" not in read_toml(what / SPEC):
        raise CheckpointError(f"{what / SPEC}: describes a bare model; export the run it comes from")
    return read_recipe(what / SPEC)


def _read(what: Path) -> tuple[Transformer, dict[str, Any]]:
    """Return a model, and what is to be written beside its graphs."""
    more: dict[str, Any] = {}
    if (what / TOKENIZER).is_file():
        more["tokenizer"] = what / TOKENIZER
    if (what / WEIGHTS).is_file():
        more["source"] = durable.digest(what / WEIGHTS)
    if not (what / folder.RUN).is_file():
        return load(what), more
    recipe, learner = load_learner(what)
    return learner.model, more | {"recipe": recipe, "kind": str(folder.read(what).get("kind", ""))}
