"""`kin export`: write a run for other people's tools."""

import argparse
import json
from pathlib import Path
from typing import Any

EPILOG = """\
examples:
  kin export runs/a --to hf --out my-model             a folder that Hugging Face's libraries open
  kin export runs/a --to hf --out my-model --kind roberta

The kind of checkpoint is found from the spec. A model that no kind can express is refused, with its place."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    parser.add_argument("what", type=Path, metavar="RUN", help="a run folder, or a saved model")
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="where to; the same as --out")
    parser.add_argument("--to", choices=["hf"], default="hf", help="for whom (default: hf)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write")
    parser.add_argument("--kind", metavar="MODEL_TYPE", help="the kind of checkpoint, where several fit")


def run(args: argparse.Namespace) -> int:
    """Write the folder and say what it is."""
    from kinfolk.core.errors import SpecError
    from kinfolk.exchange.folder import to_hf
    from kinfolk.family.building import load
    from kinfolk.train import folder

    out = args.out or args.folder
    if out is None:
        raise SpecError("kin export needs a folder to write: give --out FOLDER")
    origin: dict[str, Any] = folder.read(args.what).get("imported", {}) if (args.what / folder.RUN).is_file() else {}
    tokenizer = args.what / folder.TOKENIZER
    to_hf(
        load(args.what),
        out,
        model_type=args.kind or origin.get("model_type"),
        tokenizer=tokenizer if tokenizer.is_file() else None,
        also=json.loads(origin.get("config", "{}")),
    )
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    found = {"folder": str(out), "model_type": config["model_type"], "architecture": config["architectures"][0]}
    print(json.dumps(found, indent=2) if args.json else f"{out}: {found['architecture']} ({found['model_type']})")
    return 0
