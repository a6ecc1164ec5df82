"""Mixtures of experts beside a dense feed-forward of as many active weights: time of a token as experts grow."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kinfolk.bench.contest import BenchContestant, Contest, Work
from kinfolk.core.context import Context
from kinfolk.layers.feed_forwards.experts import Experts, Switch, Top2
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.init import Xavier
from kinfolk.layers.module import Dims
from kinfolk.layers.part import FeedForward

ENGINE = True
SIZES = {"d_model": 512, "d_ff": 2048, "length": 512, "batch_size": 8}
COUNTS = (1, 4, 16, 64)
DENSE = "dense"
ROUTERS = {"switch": (Switch(), 1), "top-2": (Top2(second="all"), 2)}
"""Routers, and how many experts a token takes; each of two is half as wide."""
PASSES = {"forward": False, "forward and backward": True}


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each router and direction."""
    return [
        Contest("experts", _title(router, passes), SIZES | {"backward": backward}, _contestants(router), DENSE)
        for router in ROUTERS
        for passes, backward in PASSES.items()
    ]


def _contestants(router: str) -> tuple[BenchContestant, ...]:
    many = (BenchContestant(f"{router}, {n} experts", settings={"router": router, "n_experts": n}) for n in COUNTS)
    # one expert is one choice for every router
    return (BenchContestant(DENSE), *(c for c in many if c.settings["n_experts"] >= ROUTERS[router][1]))


def _title(router: str, passes: str) -> str:
    tokens = SIZES["length"] * SIZES["batch_size"]
    return f"experts by {router}: {tokens:,} tokens, d={SIZES['d_model']}, {SIZES['d_ff']} active, fp32, {passes}"


def part_of(contestant: BenchContestant, sizes: Mapping[str, Any]) -> FeedForward:
    """Return the feed-forward of a contestant."""
    if contestant.name == DENSE:
        return Dense(d_ff=sizes["d_ff"])
    router, n_choices = ROUTERS[contestant.settings["router"]]
    return Experts(n_experts=contestant.settings["n_experts"], d_ff=sizes["d_ff"] // n_choices, router=router)


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return one pass of a feed-forward over random tokens."""
    dims = Dims(sizes["d_model"], 1, sizes["length"], 0.0, 2)
    torch.manual_seed(0)
    part: Any = part_of(contestant, sizes).build(dims)
    Xavier().apply(part, dims)
    shape = (sizes["batch_size"], sizes["length"], sizes["d_model"])
    x, d = torch.randn(shape).requires_grad_(sizes["backward"]), torch.randn(shape)
    part.train(sizes["backward"])

    def run() -> Tensor:
        return part(x, Context(side_losses={}), None)[0]

    def forward() -> None:
        with torch.no_grad():
            run()

    def both() -> None:
        part.zero_grad(set_to_none=True)
        x.grad = None
        run().backward(d)

    n_tokens = shape[0] * shape[1]
    flops = 4.0 * sizes["d_model"] * sizes["d_ff"] * n_tokens * (3 if sizes["backward"] else 1)
    parameters = sum(p.numel() for p in part.parameters())
    return Work(both if sizes["backward"] else forward, n_tokens, flops, parameters)
