"""Fine-tune one checkpoint on small real files: every task from it and from scratch, and every tactic on one of them.

    python docs/studies/finetuning.py DATA SOURCE --out runs/finetuning --only tasks,tactics

DATA holds cls/sst2, cls/trec, cls/cola, cls/stsb, cls/goemotions, tok/wnut17 and qa/squad_v1.1_dev as their authors
published them; SOURCE is a run or a downloaded folder. What is finished is kept, so the same command goes on. Figures
of one run are in docs/finetuning.md.
"""

import argparse
import csv
import dataclasses
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kinfolk.objectives.tasks.registry import named
from kinfolk.objectives.tasks.task import Task
from kinfolk.runs import folder
from kinfolk.train import RunOptions, resume
from kinfolk.train.finetune.recipe import Effort
from kinfolk.train.finetune.run import finetune, prepare
from kinfolk.train.finetune.source import open_source

TACTICS = ("plain", "scratch", "ulmfit", "lora=8", "frozen", "adapters=32", "slanted", "gradual", "layer-wise=0.385")
TACTICS += ("layer-wise=0.95", "mixout=0.5", "reinit=1", "bitfit")

Rows = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Study:
    """A file to learn from, another to validate on, and how many rows of each are taken."""

    task: Task
    read: Callable[[Path], tuple[Any, Any]]
    rows: tuple[int, int]
    epochs: float = 2.0
    length: int = 64
    ending: str = ".csv"
    metric: str = ""


def sst2(data: Path) -> tuple[Rows, Rows]:
    """Read sentences of film reviews, liked or not."""
    return tuple(_columns(data / "cls/sst2" / name, ("text", "label")) for name in ("train.tsv", "dev.tsv"))  # type: ignore[return-value]


def trec(data: Path) -> tuple[Rows, Rows]:
    """Read questions and what kind of thing they ask for; the last 452 are held out."""
    lines = (data / "cls/trec/TREC.train").read_text(encoding="latin-1").splitlines()
    rows = [{"text": text, "label": label.partition(":")[0]} for label, _, text in (x.partition(" ") for x in lines)]
    return rows[:-452], rows[-452:]


def cola(data: Path) -> tuple[Rows, Rows]:
    """Read sentences that linguists wrote, and whether they are English."""
    names = ("", "label", "", "text")
    found = [_columns(data / "cls/cola" / f"in_domain_{name}.tsv", names) for name in ("train", "dev")]
    return found[0], found[1]


def stsb(data: Path) -> tuple[Rows, Rows]:
    """Read pairs of sentences, and how alike they are, from 0 to 5."""
    found = []
    for name in ("train", "dev"):
        with (data / f"cls/stsb/stsb-en-{name}.csv").open(encoding="utf-8", newline="") as file:
            found.append([dict(zip(("text", "second", "label"), row, strict=True)) for row in csv.reader(file)])
    return found[0], found[1]


def goemotions(data: Path) -> tuple[Rows, Rows]:
    """Read comments, and which of 28 feelings they show."""
    names = (data / "cls/goemotions/emotions.txt").read_text(encoding="utf-8").split()
    found = []
    for part in ("train", "dev"):
        rows = _columns(data / f"cls/goemotions/{part}.tsv", ("text", "label", ""))
        found.append([row | {"label": "|".join(names[int(i)] for i in row["label"].split(","))} for row in rows])
    return found[0], found[1]


def wnut(data: Path) -> tuple[list[str], list[str]]:
    """Read sentences with entities that nobody knew before."""
    files = ("wnut17train.conll", "emerging.dev.conll")
    found = [re.split(r"\n\s*\n", (data / "tok/wnut17" / name).read_text(encoding="utf-8")) for name in files]
    found = [[s for s in part if s.strip()] for part in found]
    return found[0], found[1]


def squad(data: Path) -> tuple[Rows, Rows]:
    """Read questions about articles; those about every sixth article are held out."""
    articles = json.loads((data / "qa/squad_v1.1_dev/open.json").read_text(encoding="utf-8"))["data"]
    flat = [[_one(article, p, q) for p in article["paragraphs"] for q in p["qas"]] for article in articles]
    held = [q for i, some in enumerate(flat) if i % 6 == 5 for q in some]
    return [q for i, some in enumerate(flat) if i % 6 != 5 for q in some], held


STUDIES: dict[str, Study] = {
    "sst2": Study(named("classify"), sst2, (400, 400)),
    "trec": Study(named("classify"), trec, (400, 300)),
    "cola": Study(named("classify"), cola, (400, 400), metric="mcc"),
    "stsb": Study(named("regress", second="second"), stsb, (400, 300)),
    "goemotions": Study(named("multi-label"), goemotions, (800, 300)),
    "wnut17": Study(named("tag"), wnut, (400, 200), ending=".conll"),
    "squad": Study(named("answer"), squad, (400, 80), epochs=2, length=192, ending=".json"),
}


def _columns(path: Path, names: Sequence[str]) -> Rows:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [dict(zip(names, line.split("\t"), strict=False)) for line in lines]
    return [{name: value for name, value in row.items() if name} for row in rows if len(row) == len(set(names))]


def _one(article: Any, paragraph: Any, question: Any) -> dict[str, Any]:
    return {"title": article["title"], "paragraphs": [{"context": paragraph["context"], "qas": [question]}]}


def write(study: Study, data: Path, place: Path) -> tuple[Path, Path]:
    """Write the rows that are taken, the same ones every time, as files that `kin finetune` reads."""
    place.mkdir(parents=True, exist_ok=True)
    files = []
    for name, found, n in zip(("train", "valid"), study.read(data), study.rows, strict=True):
        chosen = random.Random(0).sample(list(found), min(n, len(found)))
        file = place / f"{name}{study.ending}"
        if study.ending == ".csv":
            with file.open("w", newline="", encoding="utf-8") as out:
                writer = csv.DictWriter(out, list(chosen[0]))
                writer.writeheader()
                writer.writerows(chosen)
        elif study.ending == ".json":
            file.write_text(json.dumps({"version": "1.1", "data": chosen}), encoding="utf-8")
        else:
            file.write_text("\n\n".join(s.strip() for s in chosen) + "\n", encoding="utf-8")
        files.append(file)
    return files[0], files[1]


def run(name: str, tactic: str, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Fine-tune once, or find what was done before; return the best validation."""
    study = STUDIES[name]
    out = args.out / f"{name}-{tactic.replace('=', '-')}-{seed}"
    options = RunOptions(threads=1, quiet=True, tensorboard=False)
    if (out / folder.RUN).exists():
        result = resume(out, options=options)
    else:
        place = args.out / "data" / name
        files = (place / f"train{study.ending}", place / f"valid{study.ending}")
        if not files[1].exists():
            files = write(study, args.data, place)
        effort = Effort(epochs=study.epochs, length=study.length, metric=study.metric, batch_size=16)
        # the same on every machine, up to rounding
        fixed = ["training.precision=fp32"]
        made = prepare(open_source(args.source), study.task, files, effort=effort, tactic=tactic, assignments=fixed)
        result, _ = finetune(made, out, seed=seed, options=options)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    best = next(row for row in rows if row["step"] == result.best_step and "valid" in row)
    learnt = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return {"study": name, "tactic": tactic, "seed": seed, "valid": best["valid"], "seconds": learnt["seconds"]}


def main() -> None:
    """Run what is asked for and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/finetuning"))
    parser.add_argument("--only", default="tasks,tactics")
    parser.add_argument("--tactics", default=",".join(TACTICS))
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    plan = [("sst2", tactic) for tactic in args.tactics.split(",")] if "tactics" in args.only else []
    if "tasks" in args.only:
        plan += [(name, tactic) for tactic in ("plain", "scratch") for name in args.studies.split(",")]
    for name, tactic in dict.fromkeys(plan):
        for seed in range(args.seeds):
            print(json.dumps(run(name, tactic, args, seed)), flush=True)


if __name__ == "__main__":
    main()
