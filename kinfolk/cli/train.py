"""`kin train`: train one relative, in one process or several."""

import argparse
from pathlib import Path

from kinfolk.cli.training import (
    announce,
    begin,
    command_of,
    data_arguments,
    machine_arguments,
    options_of,
    recipe_of,
    show,
    source_of,
)

EPILOG = """\
examples:
  kin train gpt2 --data stdlib --steps 200 --out runs/a         Python's own source, nothing to download
  kin train vanilla --data reverse --out runs/b                 a generated task: pairs for an encoder-decoder
  kin train bert --data parity --out runs/c                     labels: the relative becomes a classifier
  kin train vit --data images/ --out runs/d                   a folder of PNG or JPEG files, or MNIST's, or CIFAR's
  kin train gpt2 --data my.txt --tokenizer bpe --vocab 4096     your own text
  kin train spec.toml --data prepared/ --set training.optimiser.lr=3e-4 --set training.accumulate=4
  kin train gpt2 --size small --processes 2                     two processes (DDP); --strategy fsdp shards the weights
  kin train k-bert --data labelled:my.csv --knowledge facts.tsv what is known about the names in a text
  kin train gtrxl --env cue-recall --steps 300                  reinforcement learning: a memory task, or CartPole-v1
  torchrun --nnodes 2 … -m kinfolk.cli.main train gpt2 …        several machines; --out on a disk they share

Ctrl-C saves and leaves; `kin resume RUN` goes on as if nothing had happened, also after kill -9."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this verb."""
    add = parser.add_argument
    add("what", metavar="RELATIVE|SPEC.toml", help="a relative's name (see kin family), or a spec file")
    add("--size", default="tiny", help="tiny, small or base, of a relative given by name (default: tiny)")
    add("--steps", type=int, metavar="N", help="updates of the weights (default: the recipe's)")
    add("--seed", type=int, default=0, metavar="S", help="of weights, order and dropout (default: 0)")
    add("--set", action="append", default=[], metavar="PATH=VALUE", help="change the recipe: training.clip=0.5")
    add("--out", type=Path, metavar="RUN", help="the run folder (default: runs/NAME-DATA-SEED)")
    add("--knowledge", type=Path, metavar="FILE", help="facts to read beside a text: subject TAB relation TAB object")
    add("--env", metavar="E", help="act instead of reading: cue-recall, or an id of Gymnasium's such as CartPole-v1")
    data_arguments(parser, "stdlib")
    machine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Train and say how it ended."""
    if args.env is not None:
        from kinfolk.cli import acting

        return acting.train(args)
    begin(args, args.what, args.data, args.out)
    from kinfolk.data import open_data
    from kinfolk.decoding.written import judge
    from kinfolk.runs import folder
    from kinfolk.train import parallel
    from kinfolk.train.run import describe, train

    source = source_of(args)
    assert source is not None
    data = open_data(**source)
    recipe = recipe_of(args, data)
    out = args.out or Path("runs") / f"{recipe.folder}-{Path(args.data.partition(':')[0]).stem}-{args.seed}"
    options = options_of(args)
    announce(args, recipe, options, out, data)
    if args.processes > 1 and not parallel.inside():
        from kinfolk.core.plain import dumps

        # refused here, before processes are started that would all refuse
        folder.refuse_existing(out, dumps(recipe), describe(data, args.seed, options, source))
        return parallel.launch(command_of("train", args, out=out), args.processes, args.restarts)
    result = train(recipe, data, out, seed=args.seed, options=options, source=source, judging=judge)
    return show(result, args.json)
