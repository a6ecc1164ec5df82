"""Peak memory of a training step as a model gets deeper: plain, with gradient checkpointing, and reversible."""

from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.bench import train
from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.bench.runner import BenchRow, BenchStanding

ENGINE = True
SIZES = {
    "relative": "gpt2",
    "d_model": 256,
    "n_heads": 4,
    "d_ff": 1024,
    "vocab_size": 4096,
    "max_len": 4096,
    "length": 4096,
    "batch_size": 1,
    "steps": 2,
}
DEPTHS = (2, 4, 8, 16)
PLAIN, AGAIN, UNDONE = "kinfolk", "kinfolk, blocks recomputed", "kinfolk, reversible"
TRAINED = 12
"""Bytes that a step makes for every parameter: its gradient, and the two means that AdamW remembers."""


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each depth."""
    who = (
        BenchContestant(PLAIN),
        BenchContestant(AGAIN, OURS, {"recompute": "blocks"}),
        BenchContestant(UNDONE, OURS, {"relative": "reversible"}),
        BenchContestant(train.LEAN, "lean"),
        BenchContestant("Hugging Face GPT-2, checkpointed", "hugging-face", {"recompute": "blocks"}, "transformers"),
    )
    shape = f"d={SIZES['d_model']}, length {SIZES['length']:,}, batch {SIZES['batch_size']}, fp32"
    return [
        Contest("memory", f"memory of a step: GPT of {depth} layers, {shape}", SIZES | {"n_layers": depth}, who, PLAIN)
        for depth in DEPTHS
    ]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return the training step."""
    own = {key: value for key, value in contestant.settings.items() if key == "relative"}
    return train.prepare(contestant, {**sizes, **own})


def lines(standings: Sequence[BenchStanding]) -> list[str]:
    """Say for every contestant how much it takes at each depth, and what of that its parameters take."""
    found: dict[str, dict[int, BenchRow]] = {}
    for standing in standings:
        if standing.contest.subject == "memory":
            for row in standing.rows:
                if row.growth_bytes is not None:
                    found.setdefault(row.name, {})[standing.contest.sizes["n_layers"]] = row
    said = [line for name, rows in found.items() if len(rows) > 1 for line in _lines(name, rows)]
    head = "memory by depth: what a step takes, and in brackets gradients and the optimiser's memory of parameters"
    return [head, *said] if said else []


def _lines(name: str, rows: Mapping[int, BenchRow]) -> list[str]:
    whole = {depth: row.growth_bytes or 0.0 for depth, row in sorted(rows.items())}
    learnt = {depth: float(TRAINED * row.parameters) for depth, row in sorted(rows.items())}
    by_depth = "  ".join(f"{depth}: {_mb(whole[depth])} ({_mb(learnt[depth])})" for depth in whole)
    more, of_it = per_layer(whole), per_layer(learnt)
    assert more is not None
    assert of_it is not None
    return [
        f"  {name:34} {by_depth}",
        f"  {'':34} {_mb(more)} for each further layer, of which {_mb(of_it)} parameters",
    ]


def per_layer(bytes_by_depth: Mapping[int, float]) -> float | None:
    """Return what a further layer costs, from the shallowest to the deepest."""
    if len(bytes_by_depth) < 2:
        return None
    low, high = min(bytes_by_depth), max(bytes_by_depth)
    return (bytes_by_depth[high] - bytes_by_depth[low]) / (high - low)


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB"
