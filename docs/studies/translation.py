"""A small `vanilla` and a `torch.nn.Transformer` of its size learn to translate, by the same loop and the same batches.

    python docs/studies/translation.py TRAIN.en TRAIN.de TEST.en TEST.de --out runs/translation --steps 1000

Both have one table of a shared BPE for both sides and the output, both read the same batches in the same order and have
the same optimiser, schedule and smoothing. BLEU is of greedy texts for the first test pairs. Figures of one run are in
docs/objectives.md.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.core.plain import dumps
from kinfolk.data import Batches, Data
from kinfolk.data.preparing.manifest import MANIFEST, open_prepared
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.preparing.prepare import prepare
from kinfolk.decoding.written import write
from kinfolk.family.recipe import Recipe
from kinfolk.layers.heads.head import HeadModule
from kinfolk.layers.module import Module
from kinfolk.layers.positions.position import sinusoids
from kinfolk.models.model import Output, State
from kinfolk.objectives.learner import Learner
from kinfolk.runs import folder
from kinfolk.train import RunOptions, loop
from kinfolk.train.job import TrainingJob
from kinfolk.train.parallel import Team
from kinfolk.train.run import describe, make_job


class TableHead(HeadModule):
    """The table of embeddings as output layer."""

    bias = None

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.__dict__["table"] = table

    @property
    def weight(self) -> Tensor:
        """The matrix of the output layer."""
        weight: Tensor = self.__dict__["table"].weight
        return weight


class Peer(Module):
    """`torch.nn.Transformer` without its closing norms, as `vanilla` has none, behind the face that a learner needs."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.spec = model = recipe.model
        look, think = model.encoder.blocks[0].parts  # type: ignore[union-attr]
        n_layers = len(model.encoder.order)  # type: ignore[union-attr]
        self.table = nn.Embedding(model.vocab_size, model.d_model)
        nn.init.normal_(self.table.weight, std=model.d_model**-0.5)
        self.body = nn.Transformer(
            model.d_model, look.n_heads, n_layers, n_layers, think.d_ff, dropout=model.dropout, batch_first=True
        )
        self.body.encoder.norm = self.body.decoder.norm = None
        self.head, self.limit, self.generation = TableHead(self.table), None, GenerationIds()
        rows = sinusoids(torch.arange(model.max_len), model.d_model).float()
        self.register_buffer("positions", rows, persistent=False)

    def run(self, batch: Batch, state: State | None = None, taps: bool = False) -> Output:
        """Run on a batch."""
        assert batch.source is not None
        x, y = (self._embed(tokens) for tokens in (batch.source, batch.tokens))
        hidden = self.body(
            x,
            y,
            tgt_mask=torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1),
            src_key_padding_mask=_hidden(batch.source_keep),
            tgt_key_padding_mask=_hidden(batch.keep),
            memory_key_padding_mask=_hidden(batch.source_keep),
            tgt_is_causal=True,
        )
        return Output(hidden, self.head, {}, {}, None)

    def new_memory(self) -> None:
        """Remember nothing from batch to batch."""

    def new_state(self, batch_size: int, max_len: int) -> State:
        """Return nothing to decode from: every step runs everything again."""
        return State([])

    def _embed(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.table(tokens) * self.spec.d_model**0.5 + self.positions[: tokens.shape[1]]  # type: ignore[index]
        return x


def _hidden(keep: Tensor | None) -> Tensor | None:
    return None if keep is None else ~keep


def pairs(files: list[Path], out: Path, **choices: Any) -> Data:
    """Prepare two files that go line by line, once."""
    if not (out / MANIFEST).is_file():
        prepare(files, out, Preparation(pairs=True, **choices))
    return open_prepared(out)


def learn(name: str, job: TrainingJob, recipe: Recipe, data: Data, out: Path) -> float:
    """Train; return the seconds that it took."""
    options, start = RunOptions(quiet=True, tensorboard=False), time.perf_counter()
    if not out.exists():
        folder.create(out, dumps(recipe), describe(data, 0, options).with_origin(), data.tokenizer)
    result = loop.run(job, out, Team(), options)
    print(f"{name}: {result.step} steps, {result.tokens:,} tokens, {result.seconds:.0f} s, {result.valid}", flush=True)
    return time.perf_counter() - start


def main() -> None:
    """Train both and print their BLEU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs=4, type=Path, metavar="FILE", help="train source, train target, test, test")
    parser.add_argument("--out", type=Path, default=Path("runs/translation"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--vocab", type=int, default=4000)
    parser.add_argument("--width", type=int, default=128, help="of the model; feed-forwards are four times as wide")
    parser.add_argument("--lr", type=float, default=0.2, help="factor of the inverse square root")
    parser.add_argument("--pairs", type=int, default=400, help="of the test, for BLEU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grouping", default="auto", help="auto, length or none: see training.grouping")
    parser.add_argument("--only", default="", help="ours or theirs")
    parser.add_argument("--init", default="xavier", help="of ours; packed-xavier draws as torch.nn.Transformer does")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = pairs(args.files[:2], args.out / "train", tokenizer="bpe", vocab=args.vocab, valid=0.02)
    test = pairs(args.files[2:], args.out / "test", tokenizer=str(args.out / "train/tokenizer.json"), valid=0.0)
    widths = {"d_model": args.width, "d_ff": 4 * args.width}
    choices = {"vocab_size": data.tokenizer.vocab_size, "model.init": args.init}
    recipe = kf.relative("vanilla", size="tiny", **widths, **choices)
    training = recipe.training.replace(steps=args.steps, batch_size=64, length=64, eval_every=0, save_every=200)
    training = training.replace(eval_batches=4, optimiser=training.optimiser.replace(lr=args.lr))
    # the same on every machine, up to rounding
    training = training.replace(precision="fp32", compile="off", grouping=args.grouping)
    recipe = recipe.replace(training=training)
    ours = make_job(recipe, data, args.seed)
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)
        peer = Peer(recipe)
    theirs = ours.replace(learner=Learner(peer, recipe.objective, ours.learner.vocabulary))  # type: ignore[arg-type]
    batches = Batches(split=test.split("train"), batch_size=50, shuffle=False, length=64)
    found = {}
    for name, job in (("ours", ours), ("theirs", theirs)):
        if args.only not in ("", name):
            continue
        seconds = learn(name, job, recipe, data, args.out / name)
        model = job.learner.model
        made = write(model, batches, args.pairs, cached=not isinstance(model, Peer)).bleu()
        n_params = sum(p.numel() for p in model.parameters())
        found[name] = made | {"parameters": n_params, "seconds": seconds}
        print(f"{name}: {n_params:,} parameters, BLEU {made['BLEU']:.2f} ({made['signature']})", flush=True)
        (args.out / f"{name}.json").write_text(json.dumps(found[name], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
