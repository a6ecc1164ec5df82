"""A small encoder on short ListOps, beside the two baselines that tell what a score is worth.

    python docs/studies/listops.py --out runs/listops

Three sizes of the task and of the model, one seed each, one thread. Figures are in docs/tasks.md.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import kinfolk as kf
from kinfolk.contests.suite import majority
from kinfolk.data import Data, open_data
from kinfolk.family.supervise import judging
from kinfolk.runs import folder
from kinfolk.runs.fit import labelling_of
from kinfolk.train import RunOptions, train

SHORT, LONGER = "listops:length=32,shortest=6,depth=4", "listops:length=64,shortest=16,depth=5"
ROWS = ((SHORT, 64, 120, 3e-3), (SHORT, 128, 2400, 1e-3), (LONGER, 128, 500, 1e-3))
"""Task, width, steps, rate."""
JUDGED = 2048
"""Examples of the validation part that are scored."""


def by_operator(data: Data, n: int) -> float:
    """Return the share of labels that the best answer to the first operator alone gets right."""
    examples = data.split("valid").examples(np.arange(n))
    counts: dict[int, Counter[int]] = {}
    for tokens, label in examples:
        counts.setdefault(int(tokens[0]), Counter())[int(label)] += 1
    return sum(max(answers.values()) for answers in counts.values()) / n


def learn(task: str, width: int, steps: int, rate: float, out: Path) -> dict[str, float]:
    """Train once, or read what was done before; return the scores of the last validation."""
    done = folder.result(out)
    if done is not None:
        return dict(done["valid"])
    data = open_data(task)
    recipe = kf.relative("bert", size="tiny", vocab_size=data.tokenizer.vocab_size, d_model=width, d_ff=4 * width)
    recipe = judging(recipe, labelling_of(data))
    training = recipe.training.replace(
        steps=steps,
        batch_size=32,
        eval_every=steps,
        eval_batches=JUDGED // 32,
        precision="fp32",
        compile="off",
        optimiser=recipe.training.optimiser.replace(lr=rate),
    )
    options = RunOptions(threads=1, quiet=True, tensorboard=False)
    return dict(train(recipe.replace(training=training), data, out, seed=0, options=options).valid)


def main() -> None:
    """Print one line for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/listops"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for task, width, steps, rate in ROWS:
        data = open_data(task)
        row = {"task": task, "width": width, "steps": steps, "rate": rate}
        row |= {"majority": majority(data, JUDGED), "first operator": by_operator(data, JUDGED)}
        row |= learn(task, width, steps, rate, args.out / f"{task.partition('=')[2].partition(',')[0]}-{width}-{steps}")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
