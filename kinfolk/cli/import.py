"""`kin import`: make a run from a checkpoint of Hugging Face's libraries or a GGUF file."""

# ruff: noqa: N999 - a verb's module has its name

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.runs.huggingface.folder import Imported
    from kinfolk.runs.metadata import Metadata

EPILOG = """\
examples:
  kin import all-MiniLM-L6-v2 --out runs/minilm        a folder of config.json and model.safetensors
  kin import gpt2 --out runs/gpt2                      then: kin generate runs/gpt2 --prompt "Once"
  kin import model.gguf --out runs/model               a GGUF file of a Llama-like model; quantised types become floats
  kin import roberta-mnli --out runs/nli --pairs       then: kin predict runs/nli --input x.csv --second-column claim
  kin import bert --out runs/b --entities names.tsv    KnowBERT: a block that links names to entities, yet to learn
  kin import odd --out runs/odd --ignore my_key        a key of config.json, or tensors, of no account

Nothing is downloaded and nothing of a folder is run. What cannot be expressed is refused by name."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with config.json and weights, or a .gguf file")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run folder to make")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="NAME", help="a key or tensors (* is anything) of no account"
    )
    parser.add_argument("--pairs", action="store_true", help="its head was taught to judge two texts at once")
    parser.add_argument(
        "--entities", type=Path, metavar="FILE", help="KnowBERT: link names to entities (mention TAB entity TAB prior)"
    )
    parser.add_argument(
        "--architecture", metavar="NAME", help="the head, as BertForMaskedLM, instead of what config.json says"
    )
    parser.add_argument(
        "--type", metavar="KIND", help="the model_type, where config.json does not say it (bert, gpt2 …)"
    )


def run(args: argparse.Namespace) -> int:
    """Make the run folder and say what is in it."""
    from kinfolk.runs.huggingface.gguf_file import unpacked

    with unpacked(args.folder) as args.folder:
        return _import(args)


def _import(args: argparse.Namespace) -> int:
    from kinfolk.core.errors import SpecError
    from kinfolk.core.plain import dumps
    from kinfolk.data import Tokenizer
    from kinfolk.family.knowing import knowledgeable
    from kinfolk.models.folder import GENERATION
    from kinfolk.objectives.knowledge import Entities
    from kinfolk.objectives.tasks.classify import RowTask
    from kinfolk.objectives.tasks.registry import of_objective
    from kinfolk.runs import folder
    from kinfolk.runs.huggingface import sentence
    from kinfolk.runs.huggingface.folder import narrowed, open_folder, write_tensors
    from kinfolk.runs.huggingface.recipe import recipe_of_import
    from kinfolk.runs.knowledge import n_entities
    from kinfolk.runs.metadata import ReadingNotes

    imported = open_folder(args.folder, ignore=args.ignore, model_type=args.type, architecture=args.architecture)
    tokenizer: Any = None if imported.tokenizer is None else Whole(imported.tokenizer, imported.roles)
    model, recipe = imported.model, recipe_of_import(imported)
    if tokenizer is None and model.spec.embedding.one_size:
        tokenizer = Tokenizer.byte()  # values of images are bytes
    if args.entities is not None:
        model = knowledgeable(model, n_entities=n_entities(args.entities))
        recipe = recipe.replace(model=model.spec, knowledge=Entities(file=str(args.entities)))
    about = _metadata(imported, sentence.longest(args.folder))
    if args.pairs:
        if not isinstance(of_objective(recipe.objective), RowTask):
            raise SpecError(f"--pairs: {imported.architecture} judges no texts as a whole")
        about = about.replace(reading=ReadingNotes(sequences=2))
    folder.create(args.out, dumps(recipe), about, tokenizer, knowledge=args.entities)
    notes = {GENERATION: json.dumps(imported.generation.plain())}
    _add_files(args, lambda file: write_tensors(narrowed(model.state_dict()), file, notes))
    summary = {
        "run": str(args.out),
        "model_type": imported.model_type,
        "architecture": imported.architecture,
        "parameters": model.n_params,
        "tokenizer": tokenizer is not None,
        "left_out": list(imported.left_out),
    }
    if args.json:
        print(json.dumps(summary, indent=2))
        return 0
    print(f"{args.out}: {imported.architecture}, {model.n_params:,} parameters")
    if tokenizer is None:
        print(f"  {args.folder} has no tokenizer, so neither has the run")
    if imported.left_out:
        print(f"  left out, because {imported.architecture} does not use them: {', '.join(imported.left_out)}")
    return 0


def _add_files(args: argparse.Namespace, write: Callable[[Path], None]) -> None:
    """Write the weights, and the chat template of a folder that has one."""
    from kinfolk.runs import folder
    from kinfolk.runs.chat_template import keep_template

    folder.add(args.out, folder.WEIGHTS, write)
    keep_template(args.folder, args.out)


def _metadata(imported: "Imported", length: int | None) -> "Metadata":
    """Return what run.toml says of an imported model; `length` is the longest text that it was made for."""
    from kinfolk.runs.metadata import Checkpoint, Metadata

    origin = Checkpoint(
        model_type=imported.model_type,
        architecture=imported.architecture,
        config=json.dumps(imported.also),
        length=length,
    )
    metadata = Metadata(imported=origin, generation=imported.generation, classes=imported.classes or None)
    return metadata.with_origin()


class Whole:
    """A tokenizer that is written as it was read: no special token is added that the model has no row for."""

    def __init__(self, inner: Any, roles: Mapping[str, Sequence[int]]) -> None:
        self.inner, self.roles = inner, roles

    def save(self, path: Path) -> None:
        """Write it, and the roles of its tokens."""
        from kinfolk.data.tokenizers.tokenizer import with_roles

        text = self.inner.to_str(pretty=True)
        path.write_text(with_roles(text, self.roles) if self.roles else text, encoding="utf-8")
