"""The seven objectives of T5's table at an equal budget, judged by one task: name a function after reading its body.

    python docs/studies/t5_objectives.py --out runs/t5-objectives

Each objective trains the same small T5 on the standard library's text for as many steps, then each of the seven models,
and one that was trained on nothing, is tuned on pairs of a body and a name, and scored on names of other files. A run
that was stopped goes on where it was. Figures are in docs/objectives.md.
"""

import argparse
import ast
import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import kinfolk as kf
from kinfolk.core.plain import dumps
from kinfolk.data import Data, Split, open_data
from kinfolk.data.generated.stdlib import stdlib_files
from kinfolk.data.tokenizers.tokenizer import Tokenizer
from kinfolk.family.recipe import Recipe
from kinfolk.models.folder import load_weights
from kinfolk.objectives.denoise import T5_TABLE
from kinfolk.runs import folder
from kinfolk.train import RunOptions, loop
from kinfolk.train.parallel import Team
from kinfolk.train.run import describe, make_job, resume, train

PUBLISHED = {
    # Raffel et al. 2020, tables 4, 5 and 7: GLUE, CNN/DM, SQuAD, SuperGLUE, EnDe, EnFr, EnRo
    "prefix-lm": (80.69, 18.94, 77.99, 65.27, 26.86, 39.73, 27.49),
    "bert-style": (82.96, 19.17, 80.65, 69.85, 26.78, 40.03, 27.41),
    "deshuffling": (73.17, 18.59, 67.61, 58.47, 26.11, 39.30, 25.62),
    "iid-mask": (82.32, 19.16, 80.10, 69.28, 26.79, 39.89, 27.55),
    "replace-spans": (83.28, 19.24, 80.88, 71.36, 26.98, 39.82, 27.65),
    "drop-tokens": (84.44, 19.31, 80.52, 68.67, 27.07, 39.76, 27.82),
    "random-spans": (83.49, 19.62, 81.84, 72.53, 26.86, 39.65, 27.62),
}


class Names(Split):
    """Bodies of functions as sources, their names as targets; a file is wholly in one part."""

    kind = "pairs"

    def __init__(self, name: str, tokenizer: Tokenizer, longest: int = 120) -> None:
        self.name, self.tokenizer = name, tokenizer
        rows = [
            row for path in stdlib_files() if _held_out(path) == (name == "valid") for row in _functions(path, longest)
        ]
        rows.sort(key=lambda row: hashlib.sha256("\0".join(row).encode()).digest())
        self.rows = rows[:1000] if name == "valid" else rows

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of all names."""
        return sum(len(name.encode()) for _, name in self.rows)

    @property
    def n_tokens(self) -> int:
        """Tokens of all names, each with its end."""
        return self.n_bytes + len(self)

    def lengths(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of bodies and names."""
        pairs = [(len(a), len(b)) for a, b in self.pairs(indices)]
        sources, targets = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return sources, targets

    def pairs(self, indices: NDArray[np.int64]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the token ids of bodies and names."""
        texts = [self.rows[i] for i in indices]
        return [tuple(self.tokenizer.encode_batch(list(pair))) for pair in texts]  # type: ignore[misc]


def names() -> Data:
    """Return the task."""
    tokenizer = Tokenizer.byte()
    splits = {name: Names(name, tokenizer) for name in ("train", "valid")}
    seen = json.dumps([split.rows for split in splits.values()])
    return Data("function-names", "pairs", tokenizer, hashlib.sha256(seen.encode()).hexdigest(), splits)  # type: ignore[arg-type]


def _held_out(path: Path) -> bool:
    return hashlib.sha256(path.name.encode()).digest()[0] % 10 == 0


def _functions(path: Path, longest: int) -> list[tuple[str, str]]:
    """Return the bodies of a file's functions, cut, and their names; names that the body spells are hidden in it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("__") and len(node.body) > 1:
            body = "\n".join(ast.unparse(line) for line in node.body if not _is_text(line))
            found.append((body.replace(node.name, "_")[:longest], node.name[:30]))
    return [pair for pair in found if len(pair[0]) > 20]


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def small(data: Data, **numbers: str) -> Recipe:
    """Return a T5 that a busy core trains in a minute."""
    widths = {"d_model": 64, "n_heads": 4, "d_ff": 256, "vocab_size": data.tokenizer.vocab_size}
    return kf.relative("t5", size="tiny", **widths, **numbers)


def pretrain(name: str, data: Data, out: Path, steps: int) -> Path:
    """Train a small T5 with one objective of the table; return its weights."""
    recipe = small(data, corruption=name)
    training = recipe.training.replace(steps=steps, eval_every=0, save_every=100, batch_size=8, eval_batches=20)
    recipe = recipe.replace(training=training)
    options = RunOptions(quiet=True, tensorboard=False)
    result = resume(out, data=data) if (out / folder.RUN).exists() else train(recipe, data, out, options=options)
    print(f"{name:14} {result.valid}  {result.seconds:.0f} s", flush=True)
    return out / folder.WEIGHTS


def tune(data: Data, out: Path, steps: int, weights: Path | None) -> dict[str, float]:
    """Tune on the task from given weights, or from none; return the scores on names of other files."""
    done = folder.result(out)
    if done is not None:
        return dict(done["valid"])
    recipe = small(data).learning_from("pairs")
    training = recipe.training.replace(steps=steps, eval_every=max(1, steps // 4), save_every=0, batch_size=16)
    recipe = recipe.replace(training=training)
    job = make_job(recipe, data, 0)
    if weights is not None:
        load_weights(job.learner.model, weights)
    options = RunOptions(quiet=True, tensorboard=False)
    if not out.exists():
        folder.create(out, dumps(recipe), describe(data, 0, options).with_origin(), data.tokenizer)
    return dict(loop.run(job, out, Team(), options).valid)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/t5-objectives"))
    parser.add_argument("--steps", type=int, default=120, help="of pre-training, for each objective")
    parser.add_argument("--tune", type=int, default=45, help="steps of tuning")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="some of the objectives, between commas; what is done is not done again"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    text, task = open_data("stdlib"), names()
    parts = {name: len(split) for name, split in task.splits.items()}
    print(f"{parts} functions", flush=True)
    rows = []
    for name in args.only.split(",") if args.only else ("nothing", *T5_TABLE):
        weights = None if name == "nothing" else pretrain(name, text, args.out / name, args.steps)
        scores = tune(task, args.out / f"{name}-tuned", args.tune, weights)
        rows.append((scores["target-token"], name))
        print(f"{name:14} {scores['target-token']:.4f} nats per byte of a name", flush=True)
    print("\n| objective | nats per byte of a name | published GLUE |\n|---|---|---|")
    for nats, name in sorted(rows):
        print(f"| {name} | {nats:.4f} | {PUBLISHED[name][0] if name in PUBLISHED else ''} |")
    found = {"steps": args.steps, "tune": args.tune, "nats": {name: nats for nats, name in rows}}
    (args.out / "table.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
