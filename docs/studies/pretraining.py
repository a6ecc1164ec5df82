"""Do the encoders' objectives learn? Three small studies, each with a threshold that it can miss.

    python docs/studies/pretraining.py masked --out runs/pretraining     hidden bytes against counting bytes; also with
                                                                         --relative bert, albert, xlnet, roberta
    python docs/studies/pretraining.py electra --out runs/pretraining    how well replaced bytes are told apart
    python docs/studies/pretraining.py word2vec --out runs/pretraining   analogies that were planted in a corpus
    python docs/studies/pretraining.py waiting --out runs/pretraining    how long a step waits for its data

A run that was stopped goes on where it was. Figures are in docs/pretraining.md. The exit code tells whether the
threshold was met.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import kinfolk as kf
from kinfolk.core.rng import Rng
from kinfolk.data import Batches, Data, open_data
from kinfolk.runs.run import Run
from kinfolk.train import RunOptions
from kinfolk.train.evaluate import evaluate
from kinfolk.train.run import reading_of, resume, train

SMALL = {"d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 256}
TINY = {"d_model": 128, "d_ff": 512, "training.length": 128, "objective.unit": "word"}
MARGIN = 0.75  # of the nats of a unigram
AREA = 0.75
SOLVED = 0.9
WAITS = 0.03


def main() -> int:
    """Run one study and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["masked", "electra", "word2vec", "waiting"])
    parser.add_argument("--out", type=Path, default=Path("runs/pretraining"))
    parser.add_argument("--relative", default="roformer", help="who fills in hidden bytes")
    parser.add_argument("--steps", type=int, default=0, help="others than the study's own")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.study == "masked":
        found, wanted = masked(args.out / args.relative, args.steps, args.relative)
    else:
        study = {"electra": electra, "word2vec": word2vec, "waiting": waiting}[args.study]
        found, wanted = study(args.out / args.study, args.steps)
    sys.stdout.write(json.dumps(found | {"met": wanted}, indent=1) + "\n")
    return 0 if wanted else 1


def trained(name: str, data: Data, out: Path, steps: int, **numbers: object) -> Path:
    """Train a relative of half the tiny width on rows of 64, or go on with a run that was stopped."""
    options = RunOptions(quiet=True, tensorboard=False, threads=1)
    if (out / "run.toml").exists():
        resume(out, data=data, options=options)
        return out
    fixed = {"steps": steps, "length": 64, "compile": "off", "precision": "fp32", "eval_every": 0, "save_every": 200}
    fixed["optimiser.lr"] = 3e-3
    changes = {f"training.{key}": value for key, value in fixed.items()}
    own = SMALL | {"vocab_size": data.tokenizer.vocab_size} | numbers
    recipe = kf.relative(name, size="tiny", **changes | own)
    train(recipe, data, out, options=options)
    return out


def masked(out: Path, steps: int, name: str) -> tuple[dict[str, float], bool]:
    """Hidden bytes of the standard library, against the frequency of each byte."""
    data = open_data("stdlib:megabytes=4")
    run = Run.open(trained(name, data, out, steps or 600))
    recipe, learner = run.recipe, run.learner()
    score = evaluate(learner, Batches(data.split("valid"), shuffle=False, **reading_of(recipe.training)), 32)
    measure, nats = next((kind, found.mean) for kind, found in score.items())
    seen, met = (data.split(part).counts()[7:].astype(float) for part in ("train", "valid"))
    unigram = float(-(met * np.log((seen + 1) / (seen + 1).sum())).sum() / met.sum())
    return {measure: nats, "unigram": unigram, "ratio": nats / unigram}, nats < MARGIN * unigram


def electra(out: Path, steps: int) -> tuple[dict[str, float], bool]:
    """The area under the curve of ELECTRA's discriminator, on text it has not seen."""
    data = open_data("stdlib:megabytes=4")
    # a table of positions takes thousands of steps to find neighbours, rotation hundreds; for both networks
    place = "encoder.blocks[*].parts[0].position"
    turned = {f"{network}.{place}": {"kind": "rotary"} for network in ("model", "objective.generator")}
    run = Run.open(trained("electra", data, out, steps or 1500, **turned))
    recipe, learner = run.recipe, run.learner()
    learner.eval()
    batches = Batches(data.split("valid"), shuffle=False, **reading_of(recipe.training))
    scores, labels = [], []
    with torch.no_grad():
        for step in range(min(32, batches.steps_per_epoch)):
            output, made = learner.run(learner.prepare(batches.at(step), Rng(1)))
            real = made.targets >= 0
            scores.append(output.logits[..., 1][real].numpy())
            labels.append(made.targets[real].numpy())
    area = under_the_curve(np.concatenate(scores), np.concatenate(labels))
    return {"area": area, "replaced": float(np.concatenate(labels).mean())}, area > AREA


def under_the_curve(scores: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """Return how often a replaced token scores higher than one that was kept; of equals, half."""
    order = scores.argsort(kind="stable")
    rank = np.empty(len(scores))
    rank[order] = np.arange(1, len(scores) + 1)
    _, same, counts = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.bincount(same, rank) / counts)[same]
    n = labels.sum()
    return float((rank[labels == 1].sum() - n * (n + 1) / 2) / (n * (len(labels) - n)))


def planted(path: Path, n_things: int = 20, n_sentences: int = 12_000) -> Path:
    """Write a corpus in which a thing of a kind stands among words of the thing and words of the kind."""
    draw = np.random.default_rng(0)
    lines = []
    for thing, kind in zip(draw.integers(n_things, size=n_sentences), draw.integers(2, size=n_sentences), strict=True):
        words = [f"thing{thing}{c}" for c in draw.choice(list("abcd"), 2)]
        words += [f"kind{kind}{c}" for c in draw.choice(list("abcd"), 2)]
        order = draw.permutation(4)
        lines.append(" ".join([words[i] for i in order[:2]] + [f"w{thing}x{kind}"] + [words[i] for i in order[2:]]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def word2vec(out: Path, steps: int) -> tuple[dict[str, float], bool]:
    """How many of the planted analogies are solved: w3x1 - w3x0 + w8x0 = w8x1."""
    data = open_data(planted(out / "planted.txt"), cache=out / "cache", tokenizer="word", vocab=1000)
    numbers = {"d_model": 48, "threshold": 0.0, "window": 2}
    run = trained("word2vec", data, out / "run", steps or 600, **numbers, **{"training.optimiser.lr": 5e-3})
    vectors = Run.open(run).model().embedding.weight.detach()
    share = analogies(vectors, data, 20)
    return {"solved": share}, share >= SOLVED


def analogies(vectors: torch.Tensor, data: Data, n_things: int) -> float:
    """Return the share of analogies whose nearest vector by angle, the three given words aside, is the fourth."""
    unit = torch.nn.functional.normalize(vectors, dim=1)
    at = [[data.tokenizer.encode(f"w{thing}x{kind}")[0] for kind in (0, 1)] for thing in range(n_things)]
    assert len({i for pair in at for i in pair}) == 2 * n_things
    right = []
    for a in range(n_things):
        for b in range(n_things):
            if a == b:
                continue
            near = unit @ (unit[at[a][1]] - unit[at[a][0]] + unit[at[b][0]])
            near[[*at[a], at[b][0]]] = -torch.inf
            right.append(int(near[7:].argmax()) + 7 == at[b][1])
    return float(np.mean(right))


def waiting(out: Path, steps: int) -> tuple[dict[str, float], bool]:
    """The share of a step that waits for data, with passages of documents, whole words and pairs of sentences."""
    data = open_data("stdlib:megabytes=4")
    # as large as `tiny` is: a smaller model would wait longer for the same data
    run = trained("bert", data, out, steps or 200, **TINY)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if "waiting" in row][1:]
    seconds = np.diff([row["seconds"] for row in rows])
    share = float((np.array([row["waiting"] for row in rows[1:]]) * seconds).sum() / seconds.sum())
    return {"waiting": share}, share < WAITS


if __name__ == "__main__":
    sys.exit(main())
