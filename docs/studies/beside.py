"""Speed and memory of this tree beside an earlier one, in one run.

    git worktree add /tmp/before COMMIT
    python docs/studies/beside.py /tmp/before --rounds 30
    python docs/studies/beside.py /tmp/before --rounds 5 --bench

One process of each tree prepares the step that `kin bench` measures (training, generation, the attention operator);
with --bench it is ours in every contest of `kin bench train generate attention memory`, at its sizes. The two then take
turns, one short round each, in an order that changes from round to round. Time is processor time of one thread; the
ratio is taken within a round, and its median and quartiles over the rounds are printed. Other work on the machine still
shows in it (caches), so operators that PyTorch dispatches and calls of Python functions in one step are counted too,
which are the same on every machine. Memory is the growth of the resident peak during a round.

A child reads `subject`, `sizes` and `settings` as JSON from its arguments, and a line from its input for every round.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from kinfolk.bench.contest import OURS

CHILD = """
import gc, importlib, json, sys, time, types
from pathlib import Path
import torch
from torch.utils._python_dispatch import TorchDispatchMode
torch.set_num_threads(1)
subject, sizes, settings = json.loads(sys.argv[1])
ours = importlib.import_module("kinfolk.bench.contest").OURS
work = importlib.import_module(f"kinfolk.bench.{subject}").prepare(
    types.SimpleNamespace(how=ours, settings=settings), sizes
)
repeat = 1
def rounds(n):
    begun = time.process_time()
    for _ in range(n):
        work.step()
    return time.process_time() - begun
rounds(2)
while rounds(repeat) < 0.05:
    repeat *= 2
def number(name):
    return int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name)).split()[1])
calls, operators = 0, 0
def profile(frame, event, argument):
    global calls
    calls += event == "call"
class Count(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        global operators
        operators += 1
        return function(*args, **(kwargs or {}))
sys.setprofile(profile)
work.step()
sys.setprofile(None)
with Count():
    work.step()
print(json.dumps([repeat, operators, calls]), flush=True)
for line in sys.stdin:
    repeat = int(line)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    held = number("VmRSS")
    seconds = rounds(repeat)
    print(json.dumps([seconds / repeat, number("VmHWM"), number("VmHWM") - held]), flush=True)
"""
SMALL = {
    "d_model": 128,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 512,
    "vocab_size": 1024,
    "max_len": 256,
    "length": 256,
    "batch_size": 2,
}
RELATIVES = ["gpt2", "vanilla", "transformer-xl", "universal", "performer", "reformer", "bigbird"]
Subject = tuple[str, dict[str, Any], dict[str, Any]]
"""A subject of `kin bench`, its sizes, and the settings of a contestant."""
LARGE = SMALL | {"d_model": 384, "n_layers": 6, "n_heads": 6, "d_ff": 1536, "vocab_size": 4096, "batch_size": 4}


def contests() -> dict[str, Subject]:
    """Return what is measured, by name."""
    found: dict[str, Subject] = {f"train {name}": ("train", SMALL | {"relative": name}, {}) for name in RELATIVES}
    found["train gpt2, 6 layers of 384"] = ("train", LARGE | {"relative": "gpt2"}, {})
    for name in ("gpt2", "transformer-xl", "performer"):
        for rows in (1, 8):
            sizes = SMALL | {"relative": name, "batch_size": rows, "prompt": 16, "new": 8}
            found[f"generate {name}, batch {rows}"] = ("generate", sizes, {})
    for length in (512, 2048):
        for backward in (False, True):
            sizes = {"length": length, "window": 512, "heads": 4, "width": 64, "backward": backward}
            found[f"attention {length}, {'backward' if backward else 'forward'}"] = ("attention", sizes, {})
    return found


def benchmarks() -> dict[str, Subject]:
    """Return ours in every contest of the subjects of `kin bench` that hold still from version to version."""
    found: dict[str, Subject] = {}
    for name in ("train", "generate", "attention", "memory"):
        for contest in importlib.import_module(f"kinfolk.bench.{name}").contests():
            for who in contest.contestants:
                if contest.subject == name and who.how == OURS:
                    title = f"{name} {len(found)}: {contest.title}, {who.name}"
                    found[title] = (name, dict(contest.sizes), dict(who.settings))
    return found


def start(tree: Path, subject: Subject) -> "subprocess.Popen[str]":
    """Start the process of one tree."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-c", CHILD, json.dumps(subject)]
    return subprocess.Popen(
        command, env=environment, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ask(child: "subprocess.Popen[str]", words: str) -> list[float]:
    """Let it do a round; return seconds, the resident peak and its growth in kB."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(words + "\n")
    child.stdin.flush()
    sample: list[float] = json.loads(child.stdout.readline())
    return sample


def measure(trees: list[Path], subject: Subject, rounds: int) -> dict[str, float]:
    """Return the median ratios of new to old, and the quartiles of that of time."""
    children = [start(tree, subject) for tree in trees]
    try:
        facts: list[list[int]] = []
        for child in children:
            assert child.stdout is not None
            facts.append(json.loads(child.stdout.readline()))
        samples = []
        for turn in range(rounds):
            order = (0, 1) if turn % 2 else (1, 0)
            pair = {i: ask(children[i], str(facts[0][0])) for i in order}
            samples.append((pair[0], pair[1]))
    finally:
        for child in children:
            child.kill()
            child.communicate()
    times = [new[0] / old[0] for old, new in samples]
    low, middle, high = statistics.quantiles(times, n=4)
    peak = statistics.median(new[1] / old[1] for old, new in samples)
    growth = [statistics.median(sample[i][2] for sample in samples) / 1024 for i in (0, 1)]
    operators, calls = (facts[1][i] / facts[0][i] for i in (1, 2))
    work = {"operators": operators, "calls": calls}
    return work | {"time": middle, "low": low, "high": high, "peak": peak, "old": growth[0], "new": growth[1]}


def main() -> None:
    """Measure all contests and print a row for each."""
    parser = argparse.ArgumentParser(description="speed and memory of this tree beside an earlier one")
    parser.add_argument("before", type=Path, help="a worktree of the earlier commit")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--bench", action="store_true", help="the contests of kin bench, at their sizes")
    parser.add_argument("--only", default="", help="contests whose name contains this")
    args = parser.parse_args()
    trees = [args.before.resolve(), Path(__file__).resolve().parents[2]]
    head = f"{'contest':32} {'operators':>9} {'calls':>6} {'time':>6} {'quartiles':>12} {'peak':>7} {'growth, MB':>15}"
    print(head, flush=True)
    for name, subject in (benchmarks() if args.bench else contests()).items():
        if args.only in name:
            r = measure(trees, subject, args.rounds)
            work = f"{r['operators']:9.3f} {r['calls']:6.3f}"
            growth = f"{r['old']:7.1f} {r['new']:7.1f}"
            times = f"{r['time']:6.3f} {r['low']:6.3f}-{r['high']:5.3f}"
            print(f"{name:32} {work} {times} {r['peak']:7.3f} {growth}", flush=True)


if __name__ == "__main__":
    main()
