"""How many pairs can a mixer recall: MQAR with attention and with linear forms of one state size (Arora et al. 2023).

    python docs/studies/mqar.py --out runs/mqar                    a few minutes a row on one core
    python docs/studies/mqar.py --out runs/mqar --pairs 8 16

One body (one layer of LLaMA's block, width 32), in which the mixer reads its input through a short convolution with a
residual (Canon-A), the same for all: softmax attention, and with a state of 512 numbers each linear attention as
published (`linear`: elu + 1 features, normalised, two heads of 16 by 16), a sum of outer products with unit keys
(`unit-sum`), GLA, DeltaNet and Gated DeltaNet (one head of 16 by 32, unit keys). The last four differ in the rule of
their state alone: none has an output gate, and decays begin near 1. A sum of outer products holds about as many pairs
as its keys have channels, 16 here; so there are half, as many and twice as many. Each is trained for as many steps at
every rate with every seed. Prints one JSON line a training; a run that was stopped goes on where it was.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch

import kinfolk as kf
from kinfolk.data import open_data
from kinfolk.family.assembly import with_mixer
from kinfolk.family.recipe import Recipe
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.canon_conv import CanonConv
from kinfolk.layers.mixers.decay import LowRankDecay, StepDecay
from kinfolk.layers.mixers.linear_attention import LinearAttention
from kinfolk.layers.mixers.linear_recurrence import LinearRecurrence
from kinfolk.layers.part import Part
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import Cosine
from kinfolk.runs.fit import fit
from kinfolk.train import RunOptions
from kinfolk.train.run import resume, train

SUM = LinearRecurrence(n_heads=1, d_key=16, d_value=32, features="swish-unit")
MIXERS = {
    "attention": None,
    "gated-deltanet": SUM.replace(update="delta", decay=StepDecay(largest=1.0, most=0.01)),
    "deltanet": SUM.replace(update="delta"),
    "gla": SUM.replace(decay=LowRankDecay(temperature=256.0)),
    "unit-sum": SUM,
    "linear": LinearAttention(n_heads=2, d_head=16, bias=False),
}


def main() -> int:
    """Train everything that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/mqar"))
    parser.add_argument("--pairs", type=int, nargs="*", default=[8, 16, 32])
    parser.add_argument("--vocab", type=int, default=128)
    parser.add_argument("--mixers", nargs="*", default=list(MIXERS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--rates", type=float, nargs="*", default=[1e-2])
    parser.add_argument("--steps", type=int, default=800)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for pairs in args.pairs:
        for name in args.mixers:
            for rate, seed in itertools.product(args.rates, args.seeds):
                out = args.out / f"{pairs}-{name}-{rate:g}-{seed}"
                right = trained(recipe_of(name, rate, args.steps), Recall(pairs, args.vocab), seed, out)
                line = {"pairs": pairs, "mixer": name, "rate": rate, "seed": seed, "right": right}
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
    return 0


class Recall(NamedTuple):
    """How many pairs there are, and how many symbols, half of which are values."""

    pairs: int
    vocab: int


def trained(recipe: Recipe, task: Recall, seed: int, out: Path) -> float:
    """Return the share of queries that are answered rightly at the end."""
    data = open_data(f"mqar:length={max(32, 4 * task.pairs)},pairs={task.pairs},vocab={task.vocab}")
    options = RunOptions(quiet=True, tensorboard=False, threads=1, report=False)
    if (out / "run.toml").exists():
        result = resume(out, data=data, options=options)
    else:
        result = train(fit(recipe, data), data, out, seed=seed, options=options)
    return float(result.valid["accuracy"])


def recipe_of(name: str, rate: float, steps: int) -> Recipe:
    """Return the body with one of the mixers."""
    recipe = kf.relative("llama", size="tiny", d_model=32, n_layers=1, n_heads=1, group=1, d_ff=64)

    def mixer(look: Attention) -> Part:
        return CanonConv(part=MIXERS[name] or look, kernel=4)

    training = recipe.training.replace(
        steps=steps,
        batch_size=32,
        compile="off",
        precision="fp32",
        eval_every=steps,
        eval_batches=8,
        optimiser=AdamW(lr=rate, weight_decay=0.1),
        schedule=Cosine(warmup=100),
    )
    return recipe.replace(name=name, model=with_mixer(recipe.model, mixer), training=training)


if __name__ == "__main__":
    sys.exit(main())
