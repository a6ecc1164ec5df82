"""Import of a checkpoint of Hugging Face's libraries, or of a GGUF file, as a run folder."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps
from kinfolk.data import Tokenizer
from kinfolk.data.tokenizers.tokenizer import with_roles
from kinfolk.family.knowing import knowledgeable
from kinfolk.models.folder import GENERATION
from kinfolk.objectives.knowledge import Entities
from kinfolk.objectives.tasks.classify import RowTask
from kinfolk.objectives.tasks.registry import of_objective
from kinfolk.runs import folder
from kinfolk.runs.chat_template import keep_template
from kinfolk.runs.huggingface import sentence
from kinfolk.runs.huggingface.folder import Imported, narrowed, open_folder, write_tensors
from kinfolk.runs.huggingface.gguf_file import unpacked
from kinfolk.runs.huggingface.recipe import recipe_of_import
from kinfolk.runs.knowledge import n_entities
from kinfolk.runs.metadata import Checkpoint, Metadata, ReadingNotes


@dataclasses.dataclass(frozen=True)
class ImportOptions:
    """What a folder does not say of itself.

    ignore: keys of config.json, or tensors, of no account. pairs: its head was taught to judge two texts at once.
    entities: KnowBERT's file of names. architecture, model_type: instead of what config.json says.
    """

    ignore: tuple[str, ...] = ()
    pairs: bool = False
    entities: Path | None = None
    architecture: str | None = None
    model_type: str | None = None


@dataclasses.dataclass(frozen=True)
class ImportSummary:
    """What was imported; left_out: tensors that the architecture does not use."""

    run: str
    model_type: str
    architecture: str
    parameters: int
    tokenizer: bool
    left_out: tuple[str, ...]


def import_folder(source: Path, out: Path, options: ImportOptions) -> ImportSummary:
    """Write the run folder `out` of a checkpoint: spec, weights, tokenizer, chat template and generation settings."""
    with unpacked(source) as checkpoint:
        imported = open_folder(
            checkpoint,
            ignore=options.ignore,
            model_type=options.model_type,
            architecture=options.architecture,
        )
        model, recipe = imported.model, recipe_of_import(imported)
        tokenizer: Any = None if imported.tokenizer is None else TokenizerAsRead(imported.tokenizer, imported.roles)
        if tokenizer is None and model.spec.embedding.one_size:
            tokenizer = Tokenizer.byte()  # values of images are bytes
        if options.entities is not None:
            model = knowledgeable(model, n_entities=n_entities(options.entities))
            recipe = recipe.replace(model=model.spec, knowledge=Entities(file=str(options.entities)))
        about = _metadata(imported, sentence.longest(checkpoint))
        if options.pairs:
            if not isinstance(of_objective(recipe.objective), RowTask):
                raise SpecError(f"--pairs: {imported.architecture} judges no texts as a whole")
            about = about.replace(reading=ReadingNotes(sequences=2))
        folder.create(out, dumps(recipe), about, tokenizer, knowledge=options.entities)
        notes = {GENERATION: json.dumps(imported.generation.plain())}
        folder.add(out, folder.WEIGHTS, lambda file: write_tensors(narrowed(model.state_dict()), file, notes))
        keep_template(checkpoint, out)
    return ImportSummary(
        run=str(out),
        model_type=imported.model_type,
        architecture=imported.architecture,
        parameters=model.n_params,
        tokenizer=tokenizer is not None,
        left_out=tuple(imported.left_out),
    )


def _metadata(imported: Imported, length: int | None) -> Metadata:
    """Return what run.toml says of an imported model; `length` is the longest text that it was made for."""
    origin = Checkpoint(
        model_type=imported.model_type,
        architecture=imported.architecture,
        config=json.dumps(imported.also),
        length=length,
    )
    metadata = Metadata(imported=origin, generation=imported.generation, classes=imported.classes or None)
    return metadata.with_origin()


class TokenizerAsRead:
    """A tokenizer that is written as it was read: no special token is added that the model has no row for."""

    def __init__(self, inner: Any, roles: Mapping[str, Sequence[int]]) -> None:
        self.inner, self.roles = inner, roles

    def save(self, path: Path) -> None:
        """Write it, and the roles of its tokens."""
        text = self.inner.to_str(pretty=True)
        path.write_text(with_roles(text, self.roles) if self.roles else text, encoding="utf-8")
