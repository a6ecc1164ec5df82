"""The protocol on real training: rates against a fine grid, equals told apart, handicaps found.

    python docs/studies/trained.py grid|grid_first|tuned FOLDER [cells]
    python docs/studies/trained.py equals|gate|gate_tuned|improvement|improvement_tuned FOLDER [comparisons]
    python docs/studies/trained.py rate_high|rate_low|layer|hops FOLDER [comparisons]
    python docs/studies/trained.py rate_low,layer,equals FOLDER [comparisons]
    python docs/studies/trained.py words|labelled|optimisers|modern FOLDER DATA

Every trial runs in this process (imports are paid once) through the runner, the statistics and the trials of
`kin compare`; nothing is written but trials and one line of JSON for each comparison, in FOLDER/STUDY.jsonl. The
last four write full reports; DATA is a folder with lm/ and cls/. Stopped, the same command goes on.

Equals are one relative under several names. Under one seed they would be the same trial to the last bit, and never told
apart; so here each name draws its first weights from a seed of its own, while batches stay shared: the change that
"only another seed" makes.
"""

import csv
import dataclasses
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kinfolk.contests.run as runner
import kinfolk.contests.trials as trials
import kinfolk.train.loop as loop
import kinfolk.train.run as engine
from kinfolk.contests import plan, trial
from kinfolk.contests.gate import BASELINE, CANDIDATE, answer
from kinfolk.contests.outcome import DONE
from kinfolk.contests.report.files import write
from kinfolk.contests.settings import Settings
from kinfolk.contests.trial import RUN, Trial
from kinfolk.core.console import Console
from kinfolk.data.batches.batches import Batches

RELATIVES = ("transformer-xl", "alibi", "gpt2", "gpt", "rezero")
GRID = {"transformer-xl": (2, 7), "alibi": (0, 5), "gpt2": (0, 5), "gpt": (0, 5), "rezero": (3, 9)}
"""First and last power of the square root of 3 above 1e-3 / 3, around the best cells of ../shared/protocol."""

FIRST = {"alibi": (2, 3, 4), "transformer-xl": (2, 3, 4)}
"""Of the two relatives that are first in the grid: their best cell there and its neighbours, counted from the first."""

SMALL = (
    *("training.batch_size=4", "training.length=32", "training.eval_batches=2"),
    *("n_layers=1", "d_model=32", "n_heads=2", "d_ff=64"),
)
"""A model and batches so small that a trial takes a fraction of a second."""

DRAW = 7919
"""Distance between the seeds from which equals draw their first weights."""


def here(jobs: Sequence[Any], slots: int, screen: Any, held: Any = (), environments: Any = ()) -> list[Any]:
    """Run jobs one after another in this process, in the place of `schedule.run_all`."""
    outcomes = []
    for job in jobs:
        outcome = trial.run(Trial.read(job.folder), job.folder)
        if outcome is None:
            raise KeyboardInterrupt
        # memory is that of this one process, which says nothing of a trial
        outcome.replace(start_bytes=0, peak_bytes=0).write(job.folder)
        if outcome.status == DONE:
            trial._tidy(job.folder / RUN)
        outcomes.append(outcome)
    return outcomes


def prepare() -> None:
    """Run trials in this process, draw first weights by name for names that end in a number, and write no reports."""
    build, opening, opened = engine.build, trial._open, dict[tuple[str, str], Any]()

    def drawn(recipe: Any, seed: int) -> Any:
        tail = recipe.name.rpartition("~")[2]
        return build(recipe, seed + (DRAW * int(tail) if "~" in recipe.name else 0))

    def open_once(order: Trial) -> Any:
        key = (order.fingerprint, order.held_out)
        if key not in opened:
            opened[key] = opening(order)
        return opened[key]

    trials.run_all, engine.build, trial._open = here, drawn, open_once
    # what thousands of short trials can do without: reports, safety from power cuts, speed, checkpoints on the way, a
    # search for the widest of windows of one width, and stacks that torch formats whenever it seeds absent devices
    runner.write = lambda result: None
    loop.Session.save_is_due = lambda self: self.status() is not None
    Batches.widest = lambda self: 0
    traceback.format_stack = lambda *_, **__: []
    os.fsync = lambda descriptor: None
    loop.gemm_flops = lambda *_, **__: 1e12
    trial._special = lambda data, out: {}


def compare(settings: Settings) -> Any:
    """Compare without a word."""
    return runner.run(settings, "", Console(file=io.StringIO()))


def lines(file: Path) -> list[dict[str, Any]]:
    """Return what was found before."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def kept(folder: Path, study: str, n: int, one: Callable[[int], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Run comparisons that are missing, and yield all."""
    file = folder / f"{study}.jsonl"
    known = lines(file)
    yield from known
    for i in range(len(known), n):
        start = time.process_time()
        found = {"i": i} | one(i)
        found["seconds"] = round(time.process_time() - start, 2)
        with file.open("a") as out:
            out.write(json.dumps(found) + "\n")
        yield found


def plain(result: Any) -> dict[str, Any]:
    """Return what is kept of a comparison."""
    names = ("name", "rank", "final", "difference", "low", "high", "p", "seeds", "lr", "as_is", "flags", "note")
    rows = [
        {name: getattr(row, name) for name in names} | {"retrials": [dataclasses.asdict(one) for one in row.retrials]}
        for row in result.rows
    ]
    shares = {name: cost.flops for name, cost in result.protocol.costs.items()}
    return {"rows": rows, "flops": shares}


def grid(folder: Path, n: int) -> None:
    """Train every relative at every rate of a fine grid, with one seed that neither tunes nor judges."""
    rates = [(name, k) for name in RELATIVES for k in range(GRID[name][0], GRID[name][1] + 1)]
    _cells(folder, "grid", n, [(name, k, seed) for seed in (5000, 5001) for name, k in rates])


def grid_first(folder: Path, n: int) -> None:
    """Train the two relatives that are first in the grid around their best rates, with six seeds that both share."""
    rates = [(name, GRID[name][0] + k) for name, ks in FIRST.items() for k in ks]
    _cells(folder, "grid_first", n, [(name, k, seed) for seed in range(5002, 5008) for name, k in rates])


def _cells(folder: Path, study: str, n: int, cells: Sequence[tuple[str, int, int]]) -> None:
    """Train the first n of these relatives, at these powers of the square root of 3, with these seeds."""
    settings = Settings(
        contestants=RELATIVES, budget="250k-tokens", threads=1, jobs=1, out=folder / "grid", cache=folder / "cache"
    )
    made = plan.make(settings)
    entrants = {entrant.name: entrant for entrant in made.entrants}

    def one(i: int) -> dict[str, Any]:
        name, k, seed = cells[i]
        lr = float(f"{1e-3 / 3 * 3 ** (k / 2):.4g}")
        order = made.trial(entrants[name], seed, lr=lr, held_out="judged")
        place = folder / "grid" / "trials" / f"{name}-{lr}-{seed}"
        order.write(place)
        outcome = trial.run(order, place)
        assert outcome is not None
        trial._tidy(place / RUN)
        valid = outcome.curve[-1].valid if outcome.curve else {}
        return {"name": name, "lr": lr, "seed": seed, "status": outcome.status, "valid": valid, "test": outcome.test}

    for found in kept(folder, study, min(n, len(cells)), one):
        print(found["name"], found["lr"], found["seed"], found["test"], found["seconds"], flush=True)


def tuned(folder: Path, _: int) -> None:
    """Compare the five as `kin compare` does, tuned."""

    def one(_: int) -> dict[str, Any]:
        settings = Settings(
            contestants=RELATIVES,
            budget="250k-tokens",
            seeds=3,
            threads=1,
            jobs=1,
            out=folder / "tuned",
            cache=folder / "cache",
        )
        result = compare(settings)
        curves = {name: dataclasses.asdict(curve) for name, curve in result.rates.items()}
        return plain(result) | {"rates": curves}

    for found in kept(folder, "tuned", 1, one):
        print(json.dumps(found["rows"], indent=1))


def _small(folder: Path, contestants: Sequence[str], labels: Sequence[str], i: int, **fields: Any) -> Settings:
    return Settings(
        **{"budget": "4k-tokens", "tune": "off", "assignments": SMALL, "match": "none"}
        | fields
        | {
            "contestants": tuple(contestants),
            "labels": tuple(labels),
            "seed": 20 * i,
            "threads": 1,
            "jobs": 1,
            "out": folder / f"c{i}",
            "cache": folder.parent / "cache",
        }
    )


def equals(folder: Path, n: int) -> None:
    """Compare five equals with looks at 5, 7, 9 and 11 seeds, many times."""

    def one(i: int) -> dict[str, Any]:
        names = [f"gpt2~{j}" for j in range(5)]
        found = plain(compare(_small(folder / "equals", ["gpt2"] * 5, names, i, max_seeds=11)))
        return {"told": [row["name"] for row in found["rows"] if row["low"] is not None and row["low"] > 0], **found}

    every = list(kept(folder, "equals", n, one))
    print(sum(bool(found["told"]) for found in every), "of", len(every), "comparisons tell equals apart")


def gate(folder: Path, n: int) -> None:
    """Ask the gate about a candidate that differs in the seed of its first weights only, at the recipe's own rate."""
    _gates(folder, "gate", n, ("gpt2", "gpt2"))


def gate_tuned(folder: Path, n: int) -> None:
    """The same with rates tuned for both, as the gate does by default, at half of that budget."""
    plan.VALIDATIONS = (1, 1)
    _gates(folder, "gate_tuned", n, ("gpt2", "gpt2"), tune="lr", budget="2k-tokens")


def improvement(folder: Path, n: int) -> None:
    """Ask the gate whether GPT-2 improves on GPT, at the recipe's own rate."""
    _gates(folder, "improvement", n, ("gpt", "gpt2"), **SLIM)


def improvement_tuned(folder: Path, n: int) -> None:
    """The same with rates tuned for both and sizes matched, as the gate does by default."""
    _gates(folder, "improvement_tuned", n, ("gpt", "gpt2"), tune="lr", match="params", **SLIM)


def _gates(folder: Path, study: str, n: int, names: tuple[str, str], **fields: Any) -> None:
    labels = (f"{BASELINE}~1", f"{CANDIDATE}~2")

    def one(i: int) -> dict[str, Any]:
        settings = _small(folder / study, names, labels, i, max_seeds=9, against=labels[0], **fields)
        result = compare(settings)
        renamed = {labels[0]: BASELINE, labels[1]: CANDIDATE}
        rows = [dataclasses.replace(row, name=renamed[row.name]) for row in result.rows]
        outcomes = {renamed[name]: value for name, value in result.outcomes.items()}
        found = answer(_Read(rows, outcomes, result.folder), names)
        return {"answer": found.answer, "difference": found.difference, "low": found.low, "high": found.high} | plain(
            result
        )

    every = list(kept(folder, study, n, one))
    for word in ("better", "worse", "not decided"):
        print(word, sum(found["answer"] == word for found in every), "of", len(every))


@dataclasses.dataclass
class _Read:
    """What an answer is read from."""

    rows: list[Any]
    outcomes: dict[str, Any]
    folder: Path


def rate_high(folder: Path, n: int) -> None:
    """Compare GPT-2 with itself at a rate 8 times as high, tuning off."""
    _handicap(folder, "rate-high", n, "training.optimiser.lr=8e-3")


def rate_low(folder: Path, n: int) -> None:
    """Compare GPT-2 with itself at a rate 8 times as low, tuning off."""
    _handicap(folder, "rate-low", n, "training.optimiser.lr=1.25e-4")


def layer(folder: Path, n: int) -> None:
    """Compare GPT-2 with itself short of a layer, tuning off, for as many steps as a second layer needs to pay."""
    _handicap(folder, "layer", n, "n_layers=1", **STEPS)


def hops(folder: Path, n: int) -> None:
    """Compare BERT with itself short of a layer on pointer chasing with up to two hops, tuning off."""
    sizes = ("training.batch_size=16", "training.eval_batches=4")
    fields = {"data": "chase:places=4,queries=12,hops=2", "budget": "44k-tokens", "assignments": sizes}
    _handicap(folder, "hops", n, "n_layers=1", "bert", **fields)


def _handicap(folder: Path, study: str, n: int, change: str, relative: str = "gpt2", **fields: Any) -> None:
    def one(i: int) -> dict[str, Any]:
        names, labels = (relative, f"{relative}+{change}"), ("whole~1", "handicapped~2")
        found = plain(compare(_small(folder / study, names, labels, i, max_seeds=8, seeds=4, **SLIM | fields)))
        worse = next(row for row in found["rows"] if row["name"] == labels[1])
        return {"found": worse["rank"] == 2 and worse["low"] is not None and worse["low"] > 0, **found}

    every = list(kept(folder, study, n, one))
    print(study, sum(found["found"] for found in every), "of", len(every), "found", flush=True)


def words(folder: Path, data: str) -> None:
    """Compare six relatives on the words of an encyclopedia."""
    names = ("gpt2", "gpt", "alibi", "llama", "adaptive-input", "rezero")
    source = f"{data}/lm/wikitext-2/valid.txt"
    report(folder, "words", contestants=names, data=source, tokenizer="word", vocab=4000)


def labelled(folder: Path, data: str) -> None:
    """Compare six encoders on kinds of questions."""
    rows = [line.split(" ", 1) for line in (Path(data) / "cls/trec/TREC.train").read_text("latin-1").splitlines()]
    with (folder / "trec.csv").open("w", newline="") as out:
        table = csv.writer(out)
        table.writerow(("text", "label"))
        table.writerows((text, label.partition(":")[0]) for label, text in rows)
    names = ("bert", "albert", "distilbert", "roberta", "roformer", "deberta")
    # questions have ten words: two epochs
    longer = {"budget": "96k-tokens", "assignments": ("training.batch_size=32",)}
    report(folder, "labelled", contestants=names, data=f"labelled:{folder}/trec.csv", tokenizer="word", **longer)


def optimisers(folder: Path, data: str) -> None:
    """Compare three relatives under three optimisers."""
    names = [f"{name}{tail}" for name in ("gpt2", "llama", "alibi") for tail in ("", "+muon", "+schedule-free")]
    shorter = STEPS | {"budget": "48k-tokens"}
    report(folder, "optimisers", contestants=tuple(names), data=f"{data}/{SHAKESPEARE}", tokenizer="char", **shorter)


def modern(folder: Path, data: str) -> None:
    """Compare changes after 2021 with one Llama-like body."""
    shorter = STEPS | {"budget": "32k-tokens", "match": "none", "against": "Llama body"}
    report(folder, "modern", contestants=(), table="modern", data=f"{data}/{SHAKESPEARE}", tokenizer="char", **shorter)


def report(folder: Path, name: str, **fields: Any) -> None:
    """Compare, matched and tuned, and write the full report."""
    runner.write, trial._special, plan.VALIDATIONS = write, SPECIAL, VALIDATIONS
    usual = {
        "budget": "96k-tokens",
        "assignments": ("training.batch_size=8", "training.length=64", "training.eval_batches=4"),
    }
    settings = Settings(
        **usual | {"threads": 1, "jobs": 1} | fields,
        out=folder / name,
        cache=folder / "cache",
    )
    start = time.process_time()
    result = runner.run(settings, f"docs/studies/trained.py {name}", Console(file=io.StringIO()))
    print(name, round(time.process_time() - start), "s of processor time", flush=True)
    for row in plain(result)["rows"]:
        print("  ", json.dumps(row), flush=True)


SHAKESPEARE = "lm/tinyshakespeare/input.txt"
SPECIAL, VALIDATIONS = trial._special, plan.VALIDATIONS

SLIM: dict[str, Any] = {
    "budget": "8k-tokens",
    "assignments": (
        *("training.batch_size=4", "training.length=32", "training.eval_batches=4"),
        *("n_layers=2", "d_model=32", "n_heads=2", "d_ff=64"),
    ),
}
"""62 steps of two narrow layers: about a quarter of a second for each trial."""

STEPS: dict[str, Any] = {
    "budget": "96k-tokens",
    "assignments": ("training.batch_size=4", "training.length=64", "training.eval_batches=4"),
}
"""375 steps of the tiny size on small batches: steps are what a model of this size needs."""


def main() -> None:
    """Run the studies that the first argument names, in the folder that the second names."""
    prepare()
    place = Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    argument = sys.argv[3] if len(sys.argv) > 3 else "10"
    for study in sys.argv[1].split(","):
        globals()[study](place, int(argument) if argument.isdigit() else argument)


if __name__ == "__main__":
    main()
