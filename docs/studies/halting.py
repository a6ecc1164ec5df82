"""Does a model learn to think longer about what is harder, and does time follow?

    python docs/studies/halting.py --out runs/halting                about ten minutes on one core
    python docs/studies/halting.py --out runs/halting --seeds 1

The encoder of `universal-act` follows arrows (data `chase`): each query says how many hops, and a hop looks up what the
one before found, so the least number of steps is known. Nobody tells the model; it pays 0.01 nats for a step. Then it
reads inputs whose queries all need the same number of hops. A run that was stopped goes on where it was. The exit
code tells whether every seed learnt it: right answers, more steps for every hop from the first on, and more time for
all hops than for one.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import kinfolk as kf
from kinfolk.core.batch import IGNORE
from kinfolk.data import Batches, open_data
from kinfolk.family.assembly import pre_norm
from kinfolk.family.recipe import Recipe
from kinfolk.layers.heads.tag_head import TagHead
from kinfolk.models.depth.halting import Halting
from kinfolk.objectives.supervised import Tag
from kinfolk.optim.optimiser import AdamW
from kinfolk.optim.schedule import LinearDecay
from kinfolk.runs.run import Run
from kinfolk.train import RunOptions
from kinfolk.train.run import reading_of, resume, train

HOPS, ROWS, ROUNDS = 3, 256, 9
RIGHT = 0.97


def main() -> int:
    """Train each seed, and measure steps and time by hardness."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/halting"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    learnt = True
    for seed in range(args.seeds):
        found = measured(trained(args.out / str(seed), seed, args.steps))
        learnt &= all(f["right"] >= RIGHT for f in found)
        learnt &= all(b["steps"] > a["steps"] for a, b in itertools.pairwise(found[1:]))
        learnt &= found[-1]["ms"] > found[1]["ms"]
        sys.stdout.write(json.dumps({"seed": seed, "hops": found}, indent=1) + "\n")
    return 0 if learnt else 1


def recipe_of(vocab_size: int, n_places: int, steps: int) -> Recipe:
    """Return the encoder alone, with norms before each part, which at first makes four of at most six steps."""
    recipe = kf.relative(
        "universal-act", size="tiny", d_model=64, n_heads=4, d_ff=256, n_layers=3, dropout=0.0, vocab_size=vocab_size
    )
    encoder: Any = recipe.model.encoder
    body = encoder.replace(halting=Halting(ponder=0.01, bias=-1.0))
    model = recipe.model.replace(encoder=body, decoder=None, head=TagHead(n_tags=n_places))
    training = recipe.training.replace(
        steps=steps,
        batch_size=64,
        compile="off",
        precision="fp32",
        eval_every=0,
        optimiser=AdamW(lr=1e-3, betas=(0.9, 0.98)),
        schedule=LinearDecay(warmup=200),
    )
    return recipe.replace(model=pre_norm(model), objective=Tag(), training=training)


def trained(out: Path, seed: int, steps: int) -> Path:
    """Train, or go on with a run that was stopped."""
    data, options = open_data(f"chase:hops={HOPS}"), RunOptions(quiet=True, tensorboard=False, threads=1)
    if (out / "run.toml").exists():
        resume(out, data=data, options=options)
    else:
        places = len(data.split("train").classes)  # type: ignore[attr-defined]
        train(recipe_of(data.tokenizer.vocab_size, places, steps), data, out, seed=seed, options=options)
    return out


def measured(run: Path) -> list[dict[str, float]]:
    """Return, for inputs of each number of hops, how much is right, the mean steps of a query, and the time."""
    opened = Run.open(run)
    recipe, learner = opened.recipe, opened.learner()
    model = learner.model.eval()
    found, batches = [], []
    for hops in range(HOPS + 1):
        data = open_data(f"chase:fewest={hops},hops={hops}")
        batches.append(
            Batches(data.split("valid"), shuffle=False, **reading_of(recipe.training) | {"batch_size": ROWS}).at(0)
        )
    with torch.inference_mode():
        for hops, batch in enumerate(batches):
            out = model.run(batch, taps=["steps"])
            (steps,) = (s for name, s in out.taps.items() if name.endswith("steps"))
            asked = batch.targets != IGNORE
            right = (out.logits.argmax(-1) == batch.targets)[asked]
            found.append(
                {"hops": hops, "right": right.float().mean().item(), "steps": steps[asked].float().mean().item()}
            )
        took: list[list[float]] = [[] for _ in batches]
        for _ in range(ROUNDS):
            for mine, batch in zip(took, batches, strict=True):
                begun = time.perf_counter()
                model.run(batch)
                mine.append(time.perf_counter() - begun)
    for one, mine in zip(found, took, strict=True):
        one["ms"] = 1e3 * statistics.median(mine)
    return found


if __name__ == "__main__":
    sys.exit(main())
