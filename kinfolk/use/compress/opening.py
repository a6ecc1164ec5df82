"""What is compressed: a run of any layout with weights, and the data it is judged by."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError
from kinfolk.data import Data, Tokenizer
from kinfolk.data.location import located
from kinfolk.family.recipe import Recipe
from kinfolk.objectives.learner import Learner
from kinfolk.runs import folder
from kinfolk.runs.metadata import DataSource, Metadata
from kinfolk.runs.run import Run


@dataclasses.dataclass(frozen=True, eq=False)
class CompressibleRun:
    """A trained model, the data to judge it by, and what the run.toml of the compressed one says."""

    path: Path
    recipe: Recipe
    learner: Learner
    data: Data
    tokenizer: Tokenizer
    metadata: Metadata
    words: Path | None = None


def open_model(
    path: str | Path | Run, source: Mapping[str, Any] | None = None, aside: Path | None = None
) -> CompressibleRun:
    """Open a run; `source` has arguments of `open_data`, without them the run's own data is opened again.

    Other data is read with the model's tokenizer: other ids would mean other tokens. `aside` is where that of a folder
    is written which has it in several files; `words` of what is returned is the file that data was read with.
    """
    run = Run.open(path)
    learner, metadata = run.learner(), _kept(run)
    if source is None:
        return CompressibleRun(run.path, run.recipe, learner, run.data(), run.tokenizer, metadata)
    words = run.path / folder.TOKENIZER
    # other files of a folder may say what texts begin and end with, which prepared data depends on
    if not words.is_file() or Tokenizer.load(words).to_json() != run.tokenizer.to_json():
        if aside is None:
            raise DataError(f"{run.path}: has no whole {folder.TOKENIZER}; make a run of it with `kin import` first")
        words = aside / folder.TOKENIZER
        run.tokenizer.save(words)
    arguments = {"tokenizer": str(words)} | {key: value for key, value in source.items() if value is not None}
    data = run.data(arguments)
    metadata = metadata.replace(
        data=DataSource(**located(arguments)), fingerprint=data.fingerprint, data_kind=data.kind
    )
    return CompressibleRun(run.path, run.recipe, learner, data, run.tokenizer, metadata, words)


def _kept(run: Run) -> Metadata:
    """Return what stays true of a run after compression."""
    named = run.class_names or run.metadata.classes
    known = run.metadata.replace(classes=named, order=None, reading=None, compressed_from=None)
    return known if known.generation or known.versions else known.replace(generation=run.generation)
