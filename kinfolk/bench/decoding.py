"""Every causal relative, one token after another: time per token and size of the state against the position."""

from collections.abc import Mapping
from typing import Any

import torch

from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.contests.battery import n_bytes
from kinfolk.core.batch import Batch
from kinfolk.family import catalogue
from kinfolk.family.building import build
from kinfolk.family.making import make

ENGINE = True
POSITIONS, LONG = (256, 1024, 4096), 16384
SIZES = {"d_model": 256, "n_layers": 2, "n_heads": 4, "d_ff": 1024, "vocab_size": 256, "batch_size": 1}
PARENT = "gpt2"
TOKENS = 32
"""Decoded in one step of the measurement."""
SOURCE = 32
"""Tokens of the source, where there is one."""
PIECE = 512
"""Of the prompt, read in pieces of this length."""


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each position, among all relatives that decode."""
    who = tuple(
        BenchContestant(about.name, OURS, {"relative": about.name})
        for about in catalogue.scan().values()
        if about.topology != "encoder"
    )
    shape = f"{SIZES['n_layers']} layers, d={SIZES['d_model']}, {SIZES['n_heads']} heads, batch 1"
    return [
        Contest(
            "decoding",
            f"decode {TOKENS} tokens from position {position:,}, every causal relative: {shape}",
            SIZES | {"length": position, "backward": False},
            who,
            PARENT,
            size="state",
        )
        for position in (*POSITIONS, *([LONG] if long else []))
    ]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return the decoding of some tokens after a prompt of random ones; the step's value is the size of the state."""
    position, rows, steps = sizes["length"], sizes["batch_size"], sizes.get("steps", 3)
    numbers = {name: sizes[name] for name in ("d_model", "n_layers", "n_heads", "d_ff", "vocab_size")}
    warm_up = 1
    max_len = position + TOKENS * (warm_up + steps)
    model = build(make(contestant.settings["relative"], size="tiny", max_len=max_len, dropout=0.0, **numbers)).eval()
    draw = torch.Generator().manual_seed(1)
    prompt = torch.randint(7, sizes["vocab_size"], (rows, position), generator=draw)
    state = model.new_state(rows, max_len)
    index = torch.arange(rows)
    source = prompt[:, :SOURCE] if model.spec.topology == "encoder-decoder" else None
    with torch.inference_mode():
        for piece in prompt.split(PIECE, dim=1):
            model.run(Batch(index=index, tokens=piece, source=source), state)
            source = None  # what was encoded is part of the state from now on
    token = Batch(index=index, tokens=prompt[:, -1:])

    def step() -> float:
        with torch.inference_mode():
            for _ in range(TOKENS):
                model.head.logits(model.run(token, state).hidden)
        return float(n_bytes(state))

    return Work(step, rows * TOKENS, 0.0, model.n_params, steps=steps, warm_up=warm_up)
