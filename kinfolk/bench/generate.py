"""Cached greedy generation: tokens per second of the same GPT at batch 1 and 8."""

from collections.abc import Mapping
from typing import Any

import torch

from kinfolk.bench import peers
from kinfolk.bench.contest import OURS, BenchContestant, Contest, Work
from kinfolk.bench.train import GPT, recipe_of
from kinfolk.decoding import generate
from kinfolk.family.building import build
from kinfolk.models.cost import cost

ENGINE = True
PROMPT, NEW = 32, 128
HUGGING_FACE = "Hugging Face generate"


def contests(long: bool = False) -> list[Contest]:
    """Return one contest for each batch size."""
    who = (BenchContestant(OURS), BenchContestant(HUGGING_FACE, "hugging-face", package="transformers"))
    return [
        Contest(
            "generate",
            f"generate greedily with a cache: the same GPT, batch {rows}, prompt {PROMPT}, {NEW} new tokens, fp32",
            GPT | {"batch_size": rows, "prompt": PROMPT, "new": NEW},
            who,
            HUGGING_FACE,
        )
        for rows in (1, 8)
    ]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return the generation of one batch."""
    draw = torch.Generator().manual_seed(1)
    rows, n_prompt, n_new = sizes["batch_size"], sizes["prompt"], sizes["new"]
    prompt = torch.randint(7, sizes["vocab_size"], (rows, n_prompt), generator=draw)
    recipe = recipe_of(sizes)
    if contestant.how == OURS:
        model: Any = build(recipe, seed=0)

        def step() -> int:
            return int(generate(model, prompt, max_new=n_new, greedy=True).numel())
    else:
        torch.manual_seed(0)
        model = peers.hugging_face(sizes).eval()
        options = {"max_new_tokens": n_new, "min_new_tokens": n_new, "do_sample": False, "use_cache": True}
        mask = torch.ones_like(prompt)

        def step() -> int:
            return int(model.generate(prompt, attention_mask=mask, pad_token_id=0, **options).numel())

    flops = cost(recipe.model, n_prompt + n_new).flops_per_token * rows * (n_prompt + n_new - 1)
    parameters = sum(p.numel() for p in model.parameters())
    # every new token reads all weights once, however many rows there are
    read_bytes = 4.0 * parameters * n_new
    return Work(step, rows * n_new, flops, parameters, steps=sizes.get("steps", 5), read_bytes=read_bytes)
