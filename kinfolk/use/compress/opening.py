"""What is compressed: a run, or a folder that Hugging Face's libraries wrote, and the data it is judged by."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError
from kinfolk.data import Data, Tokenizer, open_data
from kinfolk.data.location import located
from kinfolk.data.splits.labels import with_classes
from kinfolk.family.recipe import Recipe
from kinfolk.objectives.learner import Learner
from kinfolk.runs.huggingface.folder import CONFIG, open_folder
from kinfolk.runs.huggingface.recipe import recipe_of_import
from kinfolk.train import folder
from kinfolk.train.run import load_learner, reopen, vocabulary_of

KEPT = ("seed", "data", "fingerprint", "plugins", "options", "kind", "classes", "imported", "choice", "generation")


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
    """A model that was trained, the data to judge it by, and what its run folder says of itself."""

    path: Path
    recipe: Recipe
    learner: Learner
    data: Data
    tokenizer: Tokenizer
    about: dict[str, Any]
    words: Path | None = None


def open_model(path: Path, source: Mapping[str, Any] | None = None, aside: Path | None = None) -> Opened:
    """Open a run or a folder; `source` has arguments of `open_data`, without them the run's own data is opened again.

    Other data is read with the model's tokenizer: other ids would mean other tokens. `aside` is where that of a folder
    is written which has it in several files; `words` of what is returned is the file that data was read with.
    """
    if not (path / folder.RUN).is_file() and (path / CONFIG).is_file():
        recipe, learner, tokenizer, about = _foreign(path)
    else:
        recipe, learner = load_learner(path)
        tokenizer = Tokenizer.load(path / folder.TOKENIZER)
        about = {key: value for key, value in folder.read(path).items() if key in KEPT}
    if source is None:
        if not about["data"].get("name"):
            raise DataError(f"{path}: has no data of its own; say what to judge it by with --data")
        return Opened(path, recipe, learner, reopen(path), tokenizer, about)
    words = path / folder.TOKENIZER
    # other files of a folder may say what texts begin and end with, which prepared data depends on
    if not words.is_file() or Tokenizer.load(words).to_json() != tokenizer.to_json():
        if aside is None:
            raise DataError(f"{path}: has no whole {folder.TOKENIZER}; make a run of it with `kin import` first")
        words = aside / folder.TOKENIZER
        tokenizer.save(words)
    given = {"tokenizer": str(words)} | {key: value for key, value in source.items() if value is not None}
    name = given.pop("name")
    data = open_data(name, **given)
    if not data.tokenizer.agrees(tokenizer):
        raise DataError(f"{name}: was prepared with another tokenizer than {path}; prepare it with {words}")
    if about.get("classes") and data.kind == "labelled":
        data = with_classes(data, about["classes"])
    described = {"data": located({"name": name, **given}), "fingerprint": data.fingerprint, "kind": data.kind}
    return Opened(path, recipe, learner, data, tokenizer, about | described, words)


def _foreign(path: Path) -> tuple[Recipe, Learner, Tokenizer, dict[str, Any]]:
    imported = open_folder(path)
    tokenizer = imported.own_tokenizer()
    if tokenizer is None:
        raise DataError(f"{path}: has no tokenizer, so no data can be read for it")
    recipe = recipe_of_import(imported)
    about: dict[str, Any] = {"seed": 0, "data": {"name": ""}, "fingerprint": "", "options": {}}
    about["generation"] = imported.generation.plain()
    about |= {"classes": list(imported.classes)} if imported.classes else {}
    return recipe, Learner(imported.model, recipe.objective, vocabulary_of(tokenizer)), tokenizer, about
