"""`kin import`: make a run from a checkpoint of Hugging Face's libraries or a GGUF file."""

# ruff: noqa: N999 - a verb's module has its name

import argparse
import dataclasses
import json
from pathlib import Path

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
    from kinfolk.runs.huggingface.importing import ImportOptions, import_folder

    options = ImportOptions(tuple(args.ignore), args.pairs, args.entities, args.architecture, args.type)
    summary = import_folder(args.folder, args.out, options)
    if args.json:
        print(json.dumps(dataclasses.asdict(summary), indent=2))
        return 0
    print(f"{summary.run}: {summary.architecture}, {summary.parameters:,} parameters")
    if not summary.tokenizer:
        print(f"  {args.folder} has no tokenizer, so neither has the run")
    if summary.left_out:
        print(f"  left out, because {summary.architecture} does not use them: {', '.join(summary.left_out)}")
    return 0
