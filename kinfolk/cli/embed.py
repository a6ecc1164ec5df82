"""`kin embed`: sentence embeddings, one vector for every text of a file."""

import argparse
import json
import sys
from pathlib import Path

from kinfolk.cli.predict import answer_of, engine_arguments, input_arguments, prepare_machine, rows_of

EPILOG = """\
examples:
  kin import all-MiniLM-L6-v2 --out runs/minilm
  kin embed runs/minilm --input sentences.txt --out vectors.npy       [rows, numbers], as its own folder pools them
  kin embed runs/minilm --input faq.csv --text-column question --out faq.jsonl
  kin embed runs/bert --input a.txt --out a.npy --pool max --unit     any encoder or decoder, pooled as you say

Vectors of length 1 (--unit) have cosines as products."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("what", type=Path, metavar="RUN|FOLDER", help="a run, or a folder with config.json and weights")
    input_arguments(parser)
    add("--out", type=Path, required=True, metavar="FILE", help=".npy or .jsonl")
    add("--pool", default="", metavar="P", help="mean, first, last or max (default: the model's own way, else mean)")
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("--unit", action="store_true", default=None, help="divide vectors by their length")
    unit.add_argument("--free", dest="unit", action="store_false", help="leave their length (default: the model's way)")
    add("--length", type=int, metavar="N", help="most tokens of a text (default: what the model was made for)")
    engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Write the vectors and say how many."""
    from kinfolk.use.predict.embedding import embed, open_embedder, vector_writer

    prepare_machine(args)
    embedder = open_embedder(args.what, pool=args.pool, unit=args.unit, length=args.length, answer=answer_of(args))
    n = cut = width = empty = 0
    column = args.text_column or embedder.column
    with vector_writer(args.out) as write:
        for rows, vectors, n_cut in embed(embedder, rows_of(args, column), column=column, batch_size=args.rows):
            write(rows, vectors)
            n, cut, width = n + len(rows), cut + n_cut, vectors.shape[1]
            empty += sum(not row.values[column].strip() for row in rows)
    summary = {"run": str(args.what), "out": str(args.out), "rows": n, "width": width, "cut": cut, "empty": empty}
    summary |= {"pool": embedder.pool or "own", "unit": embedder.unit, "length": embedder.length}
    if args.json:
        print(json.dumps(summary, indent=1))
        return 0
    print(f"{n:,} vectors of {width} numbers -> {args.out}", file=sys.stderr)
    if empty:
        print(f"{empty:,} empty texts are vectors of their special tokens alone", file=sys.stderr)
    if cut:
        print(f"{cut:,} texts of more than {embedder.length:,} tokens lost their end", file=sys.stderr)
    return 0
