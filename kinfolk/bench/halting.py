"""A model whose positions halt, on inputs of more and more positions that are hard for it: does time follow the steps?

What is hard is set, not learnt: one channel of a token says whether it is, no block writes to it, and the halting unit
reads nothing else. Hard tokens take all steps, easy ones the fewest, and what is measured is the skipping alone.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kinfolk.bench.contest import BenchContestant, Contest, Work
from kinfolk.core.batch import Batch
from kinfolk.family.building import build
from kinfolk.family.making import make
from kinfolk.models.cost import cost
from kinfolk.models.model import Transformer

ENGINE = True
SIZES = {"d_model": 256, "n_heads": 4, "d_ff": 1024, "n_layers": 3, "vocab_size": 512, "length": 256, "batch_size": 8}
NUMBERS = ("d_model", "n_heads", "d_ff", "vocab_size")
SHARES = {"all easy": 0.0, "a quarter hard": 0.25, "half hard": 0.5, "all hard": 1.0}
FIXED = "as many steps, none halts"
LOUD = 8.0
"""What the channel says, many times the others, so that norms and positions do not drown it."""


def contests(long: bool = False) -> list[Contest]:
    """Return one contest: shares of hard tokens, beside a model that never halts."""
    steps = 2 * SIZES["n_layers"]
    shape = f"d={SIZES['d_model']}, length {SIZES['length']}, batch {SIZES['batch_size']}, at most {steps} steps"
    mixed = (BenchContestant(name, settings={"hard": share}) for name, share in SHARES.items())
    who = (BenchContestant(FIXED, settings={"hard": 1.0, "fixed": True}), *mixed)
    return [Contest("halting", f"universal-act, forward: {shape}, fp32", SIZES, who, FIXED, number="steps")]


def prepare(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Work:
    """Return a pass over inputs of which a share is hard."""
    model, n = model_of(contestant, sizes), sizes["vocab_size"]
    draw = torch.Generator().manual_seed(1)
    shape = (sizes["batch_size"], sizes["length"])
    source, target = (_tokens(shape, contestant.settings["hard"], n, draw) for _ in range(2))
    batch = Batch(index=torch.arange(shape[0]), tokens=target, source=source)
    steps = _steps(model, batch)

    def step() -> float:
        with torch.no_grad():
            model.run(batch)
        return steps

    n_read = 2 * shape[0] * shape[1]
    flops = cost(model.spec, shape[1]).flops_per_token * shape[0] * shape[1] if contestant.settings.get("fixed") else 0
    return Work(step, n_read, flops, model.n_params)


def model_of(contestant: BenchContestant, sizes: Mapping[str, Any]) -> Transformer:
    """Return a model for which the second half of the vocabulary is hard."""
    kind = "universal" if contestant.settings.get("fixed") else "universal-act"
    # one who may halt has twice as many steps as layers
    n_layers = sizes["n_layers"] * (2 if kind == "universal" else 1)
    numbers = {name: sizes[name] for name in NUMBERS}
    recipe = make(kind, size="tiny", n_layers=n_layers, max_len=sizes["length"], **numbers)
    model = build(recipe, seed=0).eval()
    if kind == "universal":
        return model
    hard = torch.arange(sizes["vocab_size"]) >= sizes["vocab_size"] // 2
    with torch.no_grad():
        # rows are multiplied by the root of the width before they are read
        table: Any = model.embedding
        table.table.weight[:, 0] = torch.where(hard, -LOUD, LOUD) / sizes["d_model"] ** 0.5
        for stack in (model.encoder, model.decoder):
            _listen(stack)
    return model


def _listen(stack: Any) -> None:
    """Let the halting unit read the first channel, and nothing write to it."""
    for block in stack.blocks:
        for part in block.parts:
            last = part.out if hasattr(part, "out") else part.narrow
            last.weight[0] = 0.0
            last.bias[0] = 0.0
    stack.position.table_LD[:, 0] = 0.0
    stack.unit.weight_1D.zero_()
    stack.unit.weight_1D[0, 0] = 4.0
    stack.unit.bias_1.zero_()


def _tokens(shape: tuple[int, int], hard: float, n: int, draw: torch.Generator) -> Tensor:
    """Return tokens of which a share of `hard` is from the second half."""
    tokens = torch.randint(7, n // 2, shape, generator=draw)
    return tokens + (n // 2 - 7) * (torch.rand(shape, generator=draw) < hard)


def _steps(model: Transformer, batch: Batch) -> float:
    """Return the mean number of steps that a position makes."""
    with torch.no_grad():
        found = [steps for name, steps in model.run(batch, taps=["steps"]).taps.items() if name.endswith("steps")]
    if not found:
        assert model.spec.encoder is not None
        return float(model.spec.encoder.n_layers)
    return float(torch.cat([steps.flatten() for steps in found]).mean())
