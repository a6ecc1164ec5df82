"""Chunked linear recurrences alone, beside transformers' torch path and fla's references: delta rules, GLA, Mamba-2."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.bench.recurrent_peers import fla_reference
from kinfolk.ops import delta_rule as delta
from kinfolk.ops import gated_linear_recurrence as gated

ENGINE = True
HEADS, WIDTH, LENGTH = 8, 64, 4096
FLA, HUGGING_FACE = "fla's reference", "transformers, torch path"
RULES = {
    "delta rule (DeltaNet)": ("delta_rule", "delta_rule_chunkwise"),
    "gated delta rule (Gated DeltaNet)": ("gated_delta_rule", "naive_chunk_gated_delta_rule"),
    "delta rule with a decay per channel (KDA)": ("kda", "naive_chunk_kda"),
    "a decay per head (Mamba-2, RetNet)": ("simple_gla", "naive_chunk_simple_gla"),
    "a decay per channel (GLA)": ("gla", "naive_recurrent_gla"),
}
"""Where fla has its fastest reference of each rule: computed in chunks, but for GLA, of which it has none."""

DELTA = ("delta_rule", "gated_delta_rule", "kda")
ALSO = {"gated_delta_rule": (BenchContestant(HUGGING_FACE, "transformers", package="transformers"),)}


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each rule, forward and backward."""
    return [
        Contest(
            "recurrences",
            f"{rule}: {LENGTH:,} positions, {HEADS} heads of {WIDTH}, forward and backward",
            {"rule": rule, "length": LENGTH},
            (BenchContestant(OURS), BenchContestant(FLA, "fla", package="fla"), *ALSO.get(where, ())),
            FLA,
            unit="positions",
        )
        for rule, (where, _) in RULES.items()
    ]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return one pass forward and backward over random inputs, in the layout that the contestant reads."""
    rule, length = sizes["rule"], sizes["length"]
    by_channel = "per channel" in rule
    given = drawn(length, by_channel)
    step = recurrence(contestant.how, rule)
    leaves = [x.requires_grad_() for x in given]
    d_out = torch.randn(given[2].shape, generator=torch.Generator().manual_seed(2))

    def both() -> None:
        for leaf in leaves:
            leaf.grad = None
        step(*leaves).backward(d_out)

    work = delta.work if RULES[rule][0] in DELTA else gated.work
    flops = 3.0 * HEADS * length * work(length, WIDTH, WIDTH, by_channel)[0]
    return Work(both, length, flops, steps=sizes.get("steps", 3), warm_up=1)


def drawn(length: int, by_channel: bool) -> list[Tensor]:
    """Return queries, unit keys, values, log decays and strengths of writing, [B, L, H, ...]."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, length, HEADS, WIDTH, generator=draw) for _ in range(3))
    decays = torch.randn(1, length, HEADS, WIDTH if by_channel else 1, generator=draw)
    return [q, F.normalize(k, dim=-1), v, F.logsigmoid(decays) / 16, torch.rand(1, length, HEADS, generator=draw)]


def recurrence(how: str, rule: str) -> Callable[..., Tensor]:
    """Return a function of what `drawn` returns to the outputs, [B, L, H, K]; queries are divided by the root of K."""
    where, name = RULES[rule]
    if how == OURS:
        return _delta(decays=where != "delta_rule") if where in DELTA else _gated
    if how == "transformers":
        from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule as theirs

        return lambda q, k, v, g, beta: theirs(q, k, v, g.squeeze(-1), beta)[0]
    reference = getattr(fla_reference(where), name)
    if where == "delta_rule":
        return lambda q, k, v, g, beta: reference(*(x.transpose(1, 2) for x in (q, k, v, beta)))[0].transpose(1, 2)
    if where in DELTA:
        return lambda q, k, v, g, beta: reference(q, k, v, g if where == "kda" else g.squeeze(-1), beta)[0]
    return lambda q, k, v, g, beta: reference(q, k, v, g if where == "gla" else g.squeeze(-1))[0]


def _delta(decays: bool) -> Callable[..., Tensor]:
    def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        q, k, v, write, log_decay = (
            x.transpose(1, 2) for x in (q * WIDTH**-0.5, k, v, beta.unsqueeze(-1), g if decays else torch.zeros_like(g))
        )
        return delta.delta_rule(q, k, v, write, log_decay)[0].transpose(1, 2)

    return ours


def _gated(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    q, k, v, log_decay = (x.transpose(1, 2) for x in (q * WIDTH**-0.5, k, v, g))
    return gated.gated_linear_recurrence(q, k, v, log_decay)[0].transpose(1, 2)
