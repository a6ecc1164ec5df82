"""`kin eval`: score a trained model on data."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.cli import acting, harness
from kinfolk.cli.training import data_arguments, source_of
from kinfolk.core.errors import SpecError

if TYPE_CHECKING:
    from kinfolk.data import Data
    from kinfolk.models.model import Transformer
    from kinfolk.train.sliding import Timing

EPILOG = """\
examples:
  kin eval runs/a                                the run's own validation data, all of it
  kin eval runs/a --data other.txt --split all   another text, with the run's tokenizer
  kin eval runs/xl --memory 800                  a longer segment memory than in training (Transformer-XL, GTrXL)
  kin eval runs/a --sliding 800,3800             what a memory saves over sliding windows of these lengths
  kin eval runs/c --data test.csv                all rows of another file with labels
  kin eval runs/c                                of labels also macro-F1, MCC, and which class is taken for which
  kin eval runs/c --report report.html           the same as a page, with the examples it is most wrong about
  kin eval runs/b --bleu --beams 4 --average 5   pairs: BLEU of beam search, with the mean of five checkpoints
  kin eval runs/a --tasks mine.yaml              tasks of lm-evaluation-harness, in files of one's own
  kin eval runs/a --json                         for machines"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.add_argument("what", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument(
        "--split",
        help="valid, train or all; test or longer where the data has such a part (default: valid; of a file that is "
        "named by --data, all)",
    )
    parser.add_argument("--batches", type=int, default=0, metavar="N", help="only the first N batches of each part")
    parser.add_argument(
        "--sliding",
        metavar="N,N",
        help="instead of scoring, time cached evaluation beside sliding windows of these attention lengths",
    )
    parser.add_argument(
        "--samples", type=int, default=3, metavar="N", help="positions at which windows are run (default: 3)"
    )
    parser.add_argument(
        "--memory",
        type=int,
        metavar="N",
        help="positions remembered before each segment, of relatives with a segment memory (default: as in training)",
    )
    labels = parser.add_argument_group("of labels")
    labels.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help=".html or .txt: each class, confusion matrix, worst examples",
    )
    labels.add_argument("--worst", type=int, default=20, metavar="N", help="examples in the report (default: 20)")
    written = parser.add_argument_group("of pairs: generated targets")
    written.add_argument("--bleu", action="store_true", help="BLEU of generated targets, with sacrebleu's signature")
    written.add_argument("--rouge", action="store_true", help="ROUGE-L of generated targets, the F-measure")
    written.add_argument("--exact", action="store_true", help="share of targets that are generated exactly")
    samples = "generate the targets of the first N pairs only (default: all)"
    written.add_argument("--bleu-samples", "--written", dest="written", type=int, default=0, metavar="N", help=samples)
    written.add_argument("--beams", type=int, default=1, help="beam search with this many hypotheses (default: greedy)")
    written.add_argument("--length-penalty", type=float, default=0.6, help="of beam search (default: 0.6)")
    written.add_argument("--rows", type=int, default=32, metavar="N", help="pairs decoded at once (default: 32)")
    parser.add_argument(
        "--average", type=int, default=0, metavar="N", help="use the mean of the weights of the newest N checkpoints"
    )
    harness.arguments(parser)
    data_arguments(parser, None)


def run(args: argparse.Namespace) -> int:
    """Print nats per target of every measure, and bits per byte of a text."""
    from kinfolk.decoding.written import MEASURES
    from kinfolk.runs.run import Run
    from kinfolk.use.evaluation import ReportFile, TargetWriting, data_of, evaluate, scorer_of

    if args.tasks:
        return harness.evaluate(args)
    if acting.acts(args.what):
        return acting.evaluate(args)
    source = source_of(args)
    if args.sliding is not None:
        opened = Run.open(args.what)
        return _slide(args, scorer_of(opened, args.average, args.memory).model, *data_of(opened, source, args.split))
    measures = tuple(name for name in MEASURES if getattr(args, name))
    result = evaluate(
        args.what,
        source,
        split=args.split,
        batches=args.batches,
        average=args.average,
        memory=args.memory,
        report=None if args.report is None else ReportFile(args.report, args.worst),
        writing=TargetWriting(measures, args.written, args.rows, args.beams, args.length_penalty),
    )
    if args.json:
        print(json.dumps(result.plain(), indent=1))
    else:
        _print(args, result.plain(), ([] if result.tally is None else result.tally.sentences()) + result.lost)
    return 0


def _print(args: argparse.Namespace, found: dict[str, Any], said: list[str]) -> None:
    """Print an evaluation for people."""
    from kinfolk.train.special import sentences

    part = "all of it" if found["split"] == "all" else f"the {found['split']} part of it"
    print(f"{'data':14} {found['data']}, {part}" + (f", {args.batches} batches" if args.batches else ""))
    for name, one in found["measures"].items():
        nats = "" if one["perplexity"] is None else f" nats  perplexity {one['perplexity']:.2f}"
        print(f"{name:14} {one['mean']:.4f}{nats}  ({one['count']:,} targets)")
    print("\n".join(said), end="\n" if said else "")
    if found["bits_per_byte"] is not None:
        print(f"bits per byte  {found['bits_per_byte']:.4f}")
    print("\n".join(sentences(found["special"])), end="\n" if found["special"] else "")
    for name, value in found.get("written", {}).items():
        print(f"{name:14} {value:.4f}" if isinstance(value, float) else f"{name:14} {value}")


def _slide(args: argparse.Namespace, model: "Transformer", data: "Data", split: str) -> int:
    """Print seconds per token of cached evaluation and of sliding windows, and their ratios."""
    import dataclasses

    import torch

    from kinfolk.core.allocator import favour_speed
    from kinfolk.train.sliding import compare

    lengths = [word.strip() for word in args.sliding.split(",")]
    if not all(word.isdigit() for word in lengths):
        raise SpecError(f"--sliding: attention lengths are integers with commas between them, not {args.sliding!r}")
    # both ways make and drop large tensors, and neither is to be timed by how the system hands out pages
    favour_speed()
    part = data.split("valid" if split == "all" else split)
    threads, rows = torch.get_num_threads(), []
    for length in map(int, lengths):
        row = compare(model, part, length, args.samples)
        rows.append(dataclasses.asdict(row) | {"ratio": row.ratio, "fused_ratio": row.fused_ratio, "threads": threads})
        if not args.json:
            print(_sentence(row, threads), flush=True)
    if args.json:
        print(json.dumps({"run": str(args.what), "data": data.name, "sliding": rows}, indent=1))
    return 0


def _sentence(row: "Timing", threads: int) -> str:
    return (
        f"attention length {row.length:,}, {threads} thread{'s' * (threads > 1)}, seconds per token"
        f" (medians of {row.segments} segments, and of windows at {row.samples} sampled positions)\n"
        f"  cached         {row.cached:12.6f}            {row.cached_nats:.4f} nats at those positions\n"
        f"  sliding        {row.sliding:12.6f} {row.ratio:8,.0f} x {row.sliding_nats:.4f} nats,"
        f" differs by {row.difference:.1e} where both see the same\n"
        f"  sliding, SDPA  {row.fused:12.6f} {row.fused_ratio:8,.0f} x without distances, on the fused kernel alone"
    )
