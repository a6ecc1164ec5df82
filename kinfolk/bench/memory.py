"""Peak memory of a training step as a model gets deeper: plain, and with blocks made again in the backward pass."""

from collections.abc import Mapping
from typing import Any

from kinfolk.bench import train
from kinfolk.bench.contest import OURS, Contest, Contestant, Work

ENGINE = True
SIZES = {
    "relative": "gpt2",
    "d_model": 256,
    "n_heads": 4,
    "d_ff": 1024,
    "vocab_size": 4096,
    "max_len": 1024,
    "length": 1024,
    "batch_size": 4,
    "steps": 3,
}
DEPTHS = (2, 4, 8)
PLAIN, AGAIN = "kinfolk", "kinfolk, blocks recomputed"


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each depth."""
    who = (
        Contestant(PLAIN),
        Contestant(AGAIN, OURS, {"recompute": "blocks"}),
        Contestant(train.LEAN, "lean"),
        Contestant("Hugging Face GPT-2, checkpointed", "hugging-face", {"recompute": "blocks"}, "transformers"),
    )
    shape = f"d={SIZES['d_model']}, length {SIZES['length']:,}, batch {SIZES['batch_size']}, fp32"
    return [
        Contest("memory", f"memory of a step: GPT of {depth} layers, {shape}", SIZES | {"n_layers": depth}, who, PLAIN)
        for depth in DEPTHS
    ]


def prepare(contestant: Contestant, sizes: Mapping[str, Any]) -> Work:
    """Return the training step."""
    return train.prepare(contestant, sizes)


def per_layer(bytes_by_depth: Mapping[int, float]) -> float | None:
    """Return what a further layer costs, from the shallowest to the deepest."""
    if len(bytes_by_depth) < 2:
        return None
    low, high = min(bytes_by_depth), max(bytes_by_depth)
    return (bytes_by_depth[high] - bytes_by_depth[low]) / (high - low)
