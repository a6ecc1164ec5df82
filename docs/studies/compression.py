"""Every step of a compression on a language model and on a classifier that were trained for it; and students.

    python docs/studies/compression.py --text shakespeare.txt --questions TREC.train --out runs/compression

The text is any file; the questions have a line each, the class before the first space (`DESC:manner How did …`).
What is done is not done again. Figures are in docs/compression.md, made on one core.
"""

import argparse
import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import kinfolk as kf
from kinfolk.data import open_data
from kinfolk.family.building import build
from kinfolk.family.supervise import judging
from kinfolk.objectives.distil import Distil
from kinfolk.objectives.imitate import Imitate
from kinfolk.optim.optimiser import AdamW
from kinfolk.runs import folder
from kinfolk.runs.fit import labelling_of
from kinfolk.train import RunOptions
from kinfolk.train.run import train
from kinfolk.use.compress.front import picture, table
from kinfolk.use.compress.goal import parse_allowed, parse_goal
from kinfolk.use.compress.measure import Measurement
from kinfolk.use.compress.opening import open_model
from kinfolk.use.compress.pipeline import CompressionWorkshop, ordered, run_steps, working
from kinfolk.use.compress.search import search
from kinfolk.use.compress.steps import parse
from kinfolk.use.compress.student import student_of

ROWS = (
    "heads=0.25",
    "heads=0.5",
    "ff=0.5",
    "layers=0.5",
    "share=2",
    "rank=0.5",
    "svd=0.5",
    "sparse=0.5",
    "sparse=0.8",
)
LEARNT = ("heads=0.5", "ff=0.5", "layers=0.5", "share=2", "rank=0.5", "magnitude=0.8", "movement=0.8")
WHOLE = ("int8=weights", "int8", "heads=0.5,ff=0.5,recover={n},int8")


def language_model(text: Path, out: Path, steps: int, width: int) -> Path:
    """Train the six layers that are compressed, on the bytes of a text."""
    numbers = {"d_model": width, "n_layers": 6, "n_heads": 6, "d_ff": 4 * width, "max_len": 128, "dropout": 0.0}
    source = {"name": str(text), "cache": str(out.parent / "data")}
    return trained("gpt2", source, out, steps, numbers, batch_size=12, length=64)


def classifier(questions: Path, out: Path, steps: int, width: int) -> Path:
    """Train a small BERT to tell six kinds of questions apart, from nothing."""
    rows = out.parent / "questions.csv"
    if not rows.exists():
        lines = questions.read_text(encoding="latin-1").splitlines()
        with rows.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("text", "label"))
            writer.writerows((line.partition(" ")[2], line.partition(":")[0]) for line in lines if ":" in line)
    numbers = {"d_model": width, "n_layers": 6, "n_heads": 6, "d_ff": 4 * width, "max_len": 64, "dropout": 0.1}
    source = {"name": f"labelled:{rows}", "tokenizer": "word", "vocab": 4096, "cache": str(out.parent / "data")}
    return trained("bert", source, out, steps, numbers, batch_size=32, length=48)


def trained(name: str, source: dict[str, Any], out: Path, steps: int, numbers: dict[str, Any], **reading: int) -> Path:
    """Train a model once."""
    if (out / folder.WEIGHTS).exists():
        return out
    data = open_data(**source)
    recipe = kf.relative(name, size="tiny", vocab_size=data.tokenizer.vocab_size, **numbers)
    recipe = judging(recipe, labelling_of(data)) if data.kind == "labelled" else recipe
    training = recipe.training.replace(
        steps=steps, eval_every=max(1, steps // 6), save_every=0, eval_batches=0, precision="fp32", compile="off"
    )
    training = training.replace(optimiser=AdamW(lr=1e-3, weight_decay=0.01), **reading)
    done = train(recipe.replace(training=training), data, out, options=QUIET, source=source)
    print(
        f"{out.name}: {done.parameters:,} parameters, {steps} steps in {done.seconds:.0f} s, {done.valid}", flush=True
    )
    return out


QUIET = RunOptions(quiet=True, tensorboard=False)


def gentler(run: Path, **more: Any) -> CompressionWorkshop:
    """Open a run so that what learns on does so at a third of its rate."""
    opened = open_model(run)
    training = opened.recipe.training
    training = training.replace(optimiser=training.optimiser.replace(lr=training.optimiser.lr / 3))
    opened = dataclasses.replace(opened, recipe=opened.recipe.replace(training=training))
    return CompressionWorkshop(opened, more.pop("work"), print, **more)


def each_step(run: Path, out: Path, learn: int) -> list[dict[str, Any]]:
    """Take every step alone, then those that learn, and measure."""
    file = out / f"{run.name}-steps.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    # the whole model learns on as well, so that a step is not credited with what more steps do
    plans = [
        *ROWS,
        f"recover={learn}",
        *(f"{step},recover={learn}" for step in LEARNT),
        *(plan.format(n=learn) for plan in WHOLE),
    ]
    for plan in plans:
        if any(row["plan"] == plan for row in rows):
            continue
        with working(out / "now") as work:
            shop = gentler(run, work=work, n_valid=0)
            if not rows:
                rows.append({"plan": "as trained", **dataclasses.asdict(shop.judge.measure("as trained", shop.first))})
            _, found = run_steps(shop, ordered(parse(plan), 0))
            rows.append({"plan": plan, **dataclasses.asdict(found[-1])})
        file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
        print(row_of(rows[-1], rows[0]), flush=True)
    return rows


def row_of(row: dict[str, Any], first: dict[str, Any]) -> str:
    """Return a row of the table in the docs."""
    mine, whole = (Measurement(**{k: v for k, v in one.items() if k != "plan"}) for one in (row, first))
    worse = 100 * mine.worse(whole)
    sizes = f"{100 * mine.params / whole.params:.0f} % | {mine.bytes / 1e6:.2f} | {mine.memory / 1e6:.1f}"
    return (
        f"| `{row['plan']}` | {sizes} | {mine.speed:.2f} | {mine.timed:.2f} | {mine.quality[1]:.4f} | {worse:+.1f} % |"
    )


def students(run: Path, out: Path, steps: int, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Train three layers for equal steps: alone and taught, drawn and begun with layers of the teacher."""
    file = out / "students.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    ways = {"alone": None, "DistilBERT": Distil, "TinyBERT": Imitate}
    for start in ("drawn", "layers"):
        for seed in seeds:
            for way, kind in ways.items():
                done = any((r["seed"], r["start"], r["way"]) == (seed, start, way) for r in rows)
                if done or (way == "TinyBERT" and (start == "drawn" or seed != seeds[0])):
                    continue
                with working(out / "taught") as work:
                    opened = open_model(run)
                    teaching = None if kind is None else kind(task=opened.recipe.objective, teacher="")
                    shop = CompressionWorkshop(opened, work, print, n_valid=0, teaching=teaching, seed=seed)
                    model = student_of(opened, "gpt2", lambda line: None, assignments=["n_layers=3"], seed=seed)
                    if start == "drawn":
                        model = build(model.spec, seed)
                    taught = shop.recover(shop.holding(model), steps)
                    loss = shop.judge.measure(way, taught).loss
                rows.append({"seed": seed, "start": start, "way": way, "loss": loss})
                file.write_text(json.dumps(rows, indent=1), encoding="utf-8")
                print(rows[-1], flush=True)
    return rows


def front(run: Path, out: Path, goal: str, allowed: str, learn: int, tries: int) -> None:
    """Look for a goal, and draw what can be had for what."""
    drawn = out / f"{run.name}-front.svg"
    if drawn.exists():
        return
    with working(out / "now") as work:
        shop = gentler(run, work=work, n_valid=16)
        shop = dataclasses.replace(shop, teaching=Distil(task=shop.opened.recipe.objective, teacher=""))
        found = search(shop, parse_goal(goal), parse_allowed(allowed), learn, tries)
    title = f"{run.name.replace('-', ' ')}: {goal}, at most {allowed}"
    drawn.write_text(picture(found, title), encoding="utf-8")
    lines = [" | ".join(row) for row in table(found)]
    (out / f"{run.name}-front.md").write_text("\n".join([*lines, "", found.sentence()]) + "\n", encoding="utf-8")
    print(found.sentence(), flush=True)


def main() -> None:
    """Run everything that is not done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/compression"))
    parser.add_argument("--steps", type=int, default=900, help="of the language model")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--classifier-steps", type=int, default=300)
    parser.add_argument("--learn", type=int, default=80, help="steps of recovering")
    parser.add_argument("--student-steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tries", type=int, default=24)
    parser.add_argument("--models", default="language-model,classifier", help="some of them, between commas")
    parser.add_argument("--only", default="train,steps,students,front", help="some parts, between commas")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    makers = {
        "language-model": lambda out: language_model(args.text, out, args.steps, args.width),
        "classifier": lambda out: classifier(args.questions, out, args.classifier_steps, args.width),
    }
    runs = [makers[name](args.out / name) for name in args.models.split(",")]
    parts = args.only.split(",")
    if "steps" in parts:
        for run in runs:
            rows = each_step(run, args.out, args.learn)
            print("\n".join(row_of(row, rows[0]) for row in rows), flush=True)
    if "students" in parts and runs[0].name == "language-model":
        print(json.dumps(students(runs[0], args.out, args.student_steps, range(args.seeds))), flush=True)
    if "front" in parts:
        for run in runs:
            front(run, args.out, "2x faster", "2% worse", args.learn, args.tries)


if __name__ == "__main__":
    main()
