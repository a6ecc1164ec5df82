"""The attention operator alone: a window of 512 keys beside causal attention over everything."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.bench import mixers, recurrences
from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.patterns.leaves import Causal, Window
from kinfolk.ops.patterns.plan import pairs

ENGINE = True
HEADS, WIDTH, WINDOW = 8, 64, 512
SDPA = "causal SDPA"
LENGTHS, LONG = (1024, 2048, 4096, 16384), 65536


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each length and direction, and those of recurrences and of whole layers."""
    who = (BenchContestant(OURS), BenchContestant(SDPA, "sdpa"))
    operator = [
        Contest(
            "attention",
            f"attend to a window of {WINDOW} of {length:,} positions, causal, {HEADS} heads of {WIDTH}, {passes}",
            {"length": length, "window": WINDOW, "heads": HEADS, "width": WIDTH, "backward": passes != "forward"},
            who,
            SDPA,
            unit="positions",
        )
        for length in (*LENGTHS, *([LONG] if long else []))
        for passes in ("forward", "forward and backward")
    ]
    return operator + recurrences.contests(long) + mixers.contests(long)


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return one pass over random queries, keys and values."""
    length, heads, width, backward = sizes["length"], sizes["heads"], sizes["width"], sizes["backward"]
    draw = torch.Generator().manual_seed(1)
    q, k, v, d = (torch.randn(1, heads, length, width, generator=draw) for _ in range(4))
    pattern = Causal() & Window(left=sizes["window"] - 1)
    ours = contestant.how == OURS

    def forward() -> Tensor:
        return attend(q, k, v, pattern) if ours else F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both() -> None:
        for x in (q, k, v):
            x.grad = None
        forward().backward(d)

    if backward:
        for x in (q, k, v):
            x.requires_grad_()
    seen = pairs(pattern, length, length) if ours else length * (length + 1) // 2
    # two products forward; backward their four and the scores once more
    flops = (14 if backward else 4) * seen * heads * width
    few = length >= LONG
    return Work(
        both if backward else forward,
        length,
        flops,
        steps=sizes.get("steps", 1 if few else 5),
        warm_up=1 if few else 2,
    )
