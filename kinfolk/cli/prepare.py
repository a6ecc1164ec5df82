"""`kin prepare`: raw files to tokens on disk, once, for any number of trainings."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.cli.training import record_of
from kinfolk.core.errors import DataError

if TYPE_CHECKING:
    from kinfolk.data.preparing.manifest import PreparedManifest

EPILOG = """\
examples:
  kin prepare book.txt --out data/book                                    bytes: nothing to learn, any language
  kin prepare corpus/ more.jsonl.gz --out data/c --tokenizer bpe --vocab 8192
  kin prepare reviews.csv --text-column body --out data/r --on-bad skip   leave bad rows out and count them
  kin prepare train.de train.en --pairs --out data/de-en                  two files that go line by line
  kin prepare pairs.tsv --pairs --source-column 1 --target-column 2 --out data/p
  kin prepare reviews.csv --text-column body --label-column stars --out data/s      texts with labels, to be judged
  kin prepare data/book --check                                           check every hash of what was prepared

Reads .txt, .jsonl, .csv, .tsv (each also .gz), .parquet, and folders of them; any other ending is read as text, and
hidden files are left alone. A .tsv has no quoting. A text is cut at blank lines into documents of up to 128 kB, so
lines may be of any length; in the other formats a row is a document.
Killed, it goes on when the same command is run again. The same input and seed give the same bytes, whatever the
number of workers."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="files and folders")
    add("--out", type=Path, metavar="D", help="folder to make")
    add("--tokenizer", default="byte", metavar="T", help="byte, char, word, bpe, unigram or a tokenizer.json")
    add("--vocab", type=int, metavar="N", help="ids to learn, specials included (default: bpe and unigram 8192)")
    add("--sample", type=size, default="32M", metavar="SIZE", help="text to learn a tokenizer from (default: 32M)")
    add("--valid", type=float, default=0.05, metavar="SHARE", help="documents held out for validation (default: 0.05)")
    add("--seed", type=int, default=0, metavar="S", help="of the split and of the sample (default: 0)")
    rows = parser.add_argument_group("rows")
    rows.add_argument("--text-column", default="text", metavar="C", help="column or key of the text (default: text)")
    rows.add_argument("--pairs", action="store_true", help="rows are a source and a target; text files come in twos")
    rows.add_argument("--source-column", default="source", metavar="C", help="name, or number from 1 (default: source)")
    rows.add_argument("--target-column", default="target", metavar="C", help="name, or number from 1 (default: target)")
    rows.add_argument("--label-column", default="", metavar="C", help="rows have a label here: name, or number from 1")
    rows.add_argument("--second-column", default="", metavar="C", help="of labelled rows: a second text")
    rows.add_argument("--labels", default="class", metavar="KIND", help="class, classes or number (default: class)")
    rows.add_argument("--between", default="bar", metavar="B", help="of classes: bar, comma, semicolon or space (bar)")
    rows.add_argument("--on-bad", default="stop", metavar="stop|skip", help="what a bad row does (default: stop)")
    rows.add_argument("--max-line", type=size, default="16M", metavar="SIZE", help="longest row (default: 16M)")
    machine = parser.add_argument_group("the machine")
    machine.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores)")
    machine.add_argument("--check", action="store_true", help="check the hashes of prepared folders; makes nothing")


def run(args: argparse.Namespace) -> int:
    """Prepare, or check what was prepared, and print what is there."""
    from kinfolk.data.preparing.manifest import open_prepared, read_manifest
    from kinfolk.data.preparing.preparation import Preparation
    from kinfolk.data.preparing.prepare import prepare

    if args.check:
        for folder in map(Path, args.inputs):
            open_prepared(folder, verify=True)
            _show(read_manifest(folder), folder, as_json=args.json)
        return 0
    if args.out is None:
        raise DataError("--out is missing: the folder to make")
    pairs = args.pairs or (args.source_column, args.target_column) != ("source", "target")
    choices = record_of(Preparation, args, pairs=pairs)
    if args.workers is not None and args.workers < 1:
        raise DataError(f"--workers must be at least 1, not {args.workers}")
    manifest = prepare(args.inputs, args.out, choices, workers=args.workers)
    _show(manifest, args.out, as_json=args.json)
    return 0


def size(text: str) -> int:
    """Read a number of bytes such as 500, 16M or 2G."""
    scale = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper(), 0)
    number = text[:-1] if scale else text
    if not number.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a size such as 500, 16M or 2G, got {text!r}")
    return int(number) << scale


def _show(manifest: "PreparedManifest", folder: Path, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"folder": str(folder), **_summary(manifest)}, indent=2, ensure_ascii=False))
        return
    from rich import box
    from rich.table import Table

    from kinfolk.core.console import Console

    table = Table("split", *_COLUMNS, box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in _summary(manifest)["splits"].items():
        table.add_row(name, *(f"{row[c]:,}" if isinstance(row[c], int) else f"{row[c]:.4f}" for c in _COLUMNS))
    console = Console(soft_wrap=True)
    console.print(table)
    kind, vocab = manifest.tokenizer["kind"], manifest.tokenizer["vocab_size"]
    console.print(f"{folder}: {manifest.kind}, {kind} tokenizer with {vocab:,} ids", markup=False, highlight=False)
    for name, row in manifest.splits.items():
        if counted := row.get("labels"):
            common = sorted(counted, key=lambda label: (-counted[label], label))
            rest = f" and {len(common) - _SHOWN:,} more" if len(common) > _SHOWN else ""
            shown = ", ".join(f"{label} {counted[label]:,}" for label in common[:_SHOWN])
            console.print(f"{name}: {shown}{rest}", markup=False, highlight=False)
    if manifest.bad:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in manifest.bad.items())
        console.print(
            f"bad rows left out: {manifest.bad_rows:,} ({reasons}); each is listed in {folder / 'bad.jsonl'}",
            markup=False,
        )
    for name, row in manifest.splits.items():
        if not row["documents"] and manifest.preparation["valid"]:
            console.print(f"the {name} part is empty: there is only one document", markup=False)


_SHOWN = 12
_COLUMNS = ("documents", "tokens", "bytes", "tokens per byte", "unknown")


def _summary(manifest: "PreparedManifest") -> dict[str, Any]:
    splits = {}
    for name, row in manifest.splits.items():
        splits[name] = {key: row[key] for key in ("documents", "tokens", "bytes")}
        splits[name]["tokens per byte"] = row["scored"] / max(1, row["bytes"])
        # the share of what the model is scored on that the vocabulary does not know
        splits[name]["unknown"] = row["unknown"] / max(1, row["scored"])
        if manifest.kind == "labelled":
            # labels are stored beside the tokens, but are none
            splits[name] |= {"tokens": row["scored"], "labels": row.get("labels", {})}
    return {
        "kind": manifest.kind,
        "tokenizer": manifest.tokenizer,
        "splits": splits,
        "bad rows": manifest.bad_rows,
        "bad": manifest.bad,
        "inputs": manifest.inputs,
    }
