"""`kin export`: write a run for other people's tools."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

EPILOG = """\
examples:
  kin export runs/a --to hf --out my-model             a folder that Hugging Face's libraries open
  kin export runs/a --to hf --out my-model --kind roberta
  kin export runs/a --to onnx --out my-graphs          graphs for onnxruntime, their state as inputs and outputs
  kin export runs/a --to onnx --out small --int8       weights of matrices as 8-bit integers
  kin export runs/a --to onnx --out tiny --int4        as 4-bit integers in blocks: smaller, less exact
  kin export runs/a --to onnx --out small --int8 --data my.txt    and what that costs on validation data
  kin generate my-graphs --engine onnx --prompt "def " what graphs write

The kind of checkpoint is found from the spec. A model that no kind can express is refused, with its place, and so is a
part that no graph can. Every graph is held to torch before it is written."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    parser.add_argument("what", type=Path, metavar="RUN", help="a run folder, or a saved model")
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="where to; the same as --out")
    parser.add_argument("--to", choices=["hf", "onnx"], default="hf", help="for whom (default: hf)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="the folder to write")
    parser.add_argument("--kind", metavar="MODEL_TYPE", help="hf: the kind of checkpoint, where several fit")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--int8", action="store_true", help="onnx: weights of matrices as 8-bit integers")
    precision.add_argument("--int4", action="store_true", help="onnx: weights of matrices as 4-bit integers in blocks")
    parser.add_argument(
        "--data", metavar="DATA", help='onnx: score validation data by the graphs; "own" is what the run learnt from'
    )
    parser.add_argument(
        "--batches", type=int, default=0, metavar="N", help="onnx: only the first N batches of it (default: all)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the folder and say what it is."""
    from kinfolk.core.errors import SpecError

    out = args.out or args.folder
    if out is None:
        raise SpecError("kin export needs a folder to write: give --out FOLDER")
    for option in ("int8", "int4", "data", "batches"):
        if args.to != "onnx" and getattr(args, option):
            raise SpecError(f"--{option} belongs to --to onnx")
    if args.to == "onnx" and args.kind:
        raise SpecError("--kind belongs to --to hf")
    return _to_onnx(args, out) if args.to == "onnx" else _to_hf(args, out)


def _to_hf(args: argparse.Namespace, out: Path) -> int:
    from kinfolk.core import durable
    from kinfolk.runs import folder
    from kinfolk.runs.chat_template import FILE as TEMPLATE
    from kinfolk.runs.huggingface.folder import to_hf
    from kinfolk.runs.metadata import Checkpoint
    from kinfolk.runs.run import Run

    run = Run.open(args.what)
    origin = run.metadata.imported or Checkpoint()
    names = {str(i): name for i, name in enumerate(run.class_names)}
    tokenizer = run.path / folder.TOKENIZER
    to_hf(
        run.model(),
        out,
        model_type=args.kind or origin.model_type or None,
        tokenizer=tokenizer if tokenizer.is_file() else None,
        also=json.loads(origin.config) | ({"id2label": names} if names else {}),
    )
    if run.chat_template is not None:
        durable.write(out / TEMPLATE, run.chat_template.text)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    summary = {"folder": str(out), "model_type": config["model_type"], "architecture": config["architectures"][0]}
    print(json.dumps(summary, indent=2) if args.json else f"{out}: {summary['architecture']} ({summary['model_type']})")
    return 0


def _to_onnx(args: argparse.Namespace, out: Path) -> int:
    from kinfolk.use.onnx.opening import export

    print("tracing the model; the graphs are then held to torch", file=sys.stderr)
    about = export(args.what, out, "int8" if args.int8 else "int4" if args.int4 else "fp32")
    sizes = {name: (out / name).stat().st_size for name in about.files}
    summary: dict[str, Any] = {
        "folder": str(out),
        "topology": about.topology,
        "precision": about.precision,
        "bytes": sizes,
        "state": [kept.name for kept in about.state],
        "difference": max(about.differences.values()),
    }
    if about.errors:
        summary["errors"] = about.errors
    if args.data is not None:
        summary["scores"] = _scores(args, out)
    if args.json:
        print(json.dumps(summary, indent=2))
        return 0
    files = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items())
    beside = "torch" if about.precision == "fp32" else "fp32, which was held to torch"
    print(f"{out}: {about.topology}, {about.precision}: {files}")
    print(f"largest difference to {beside}: {summary['difference']:.1e} of the largest score, or of 1")
    if about.errors:
        print("mean relative error: " + ", ".join(f"{what} {share:.2%}" for what, share in about.errors.items()))
    for name, scores in summary.get("scores", {}).items():
        print(f"{name:14} " + "   ".join(f"{how} {value:.4f}" for how, value in scores.items()))
    return 0


def _scores(args: argparse.Namespace, out: Path) -> dict[str, dict[str, float]]:
    """Score validation data by torch, which fp32 graphs agree with, and by the graphs that were written."""
    from kinfolk.runs.run import Run
    from kinfolk.use.onnx.opening import compared

    run = Run.open(args.what)
    data = run.data(None if args.data == "own" else {"name": args.data})
    return compared(run, Run.open(out), data, args.batches)
