"""`kin eval`: score a trained model on data."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinfolk.cli.train import data_arguments, open_source
from kinfolk.core.errors import DataError, SpecError, suggest

if TYPE_CHECKING:
    from kinfolk.data import Data

SPLITS = ("valid", "train", "all")

EPILOG = """\
examples:
  kin eval runs/a                                the run's own validation data, all of it
  kin eval runs/a --data other.txt --split all   another text, with the run's tokenizer
  kin eval runs/a --json                         for machines"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    parser.epilog = EPILOG
    parser.add_argument("what", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument("--split", default="valid", help="which part of the data: valid, train or all (default: valid)")
    parser.add_argument("--batches", type=int, default=0, metavar="N", help="only the first N batches of each part")
    data_arguments(parser, None)


def run(args: argparse.Namespace) -> int:
    """Print nats per target of every measure, and bits per byte of a text."""
    from kinfolk.train.run import load_learner

    if args.split not in SPLITS:
        raise SpecError(f"--split: unknown part {args.split!r}{suggest(args.split, SPLITS)}")
    recipe, learner = load_learner(args.what)
    data = _open(args)
    found = _score(args, recipe, learner, data)
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    for name, score in found["measures"].items():
        print(f"{name:14} {score['mean']:.4f} nats  perplexity {score['perplexity']:.2f}  ({score['count']:,} targets)")
    if found["bits_per_byte"] is not None:
        print(f"bits per byte  {found['bits_per_byte']:.4f}")
    return 0


def _open(args: argparse.Namespace) -> "Data":
    """Open the run's data, or other data under the run's tokenizer: other ids would mean other tokens."""
    from kinfolk.data import Tokenizer
    from kinfolk.train import folder
    from kinfolk.train.run import reopen

    if args.data is None:
        return reopen(args.what)
    own = args.what / folder.TOKENIZER
    source = {"name": args.data, "tokenizer": args.tokenizer or str(own), "vocab": args.vocab, "cache": args.cache}
    data = open_source({name: value for name, value in source.items() if value is not None})
    if data.tokenizer.to_json() != Tokenizer.load(own).to_json():
        raise DataError(f"{args.data}: was prepared with another tokenizer than {args.what}; prepare it with {own}")
    return data


def _score(args: argparse.Namespace, recipe: Any, learner: Any, data: "Data") -> dict[str, Any]:
    import math

    from kinfolk.data import Batches
    from kinfolk.train.evaluate import Score, bits_per_byte, evaluate
    from kinfolk.train.run import reading_of

    reading = reading_of(recipe.training)
    totals: dict[str, Score] = {}
    names = ("train", "valid") if args.split == "all" else (args.split,)
    for name in names:
        split = data.split(name)
        batches = Batches(split=split, shuffle=False, **reading)
        for measure, score in evaluate(learner, batches, args.batches).items():
            old = totals.get(measure, Score(0.0, 0.0))
            totals[measure] = Score(old.total + score.total, old.count + score.count)
    return {
        "run": str(args.what),
        "data": data.name,
        "split": args.split,
        "measures": {
            name: {"mean": score.mean, "perplexity": math.exp(min(score.mean, 700.0)), "count": int(score.count)}
            for name, score in totals.items()
        },
        "bits_per_byte": bits_per_byte(totals, data.split(names[-1])),
    }
