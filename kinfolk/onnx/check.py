"""Holds exported graphs to torch: other batches and lengths than were traced, and decoding step by step."""

from pathlib import Path

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.models.model import Transformer
from kinfolk.onnx.engine import BOS, Engine

LIMIT = 1e-4
"""The largest difference of a score, as a share of the largest score where that is above 1."""
SHAPES = ((1, 1), (1, 8), (3, 11))
"""Batches and lengths that are tried; none is what was traced."""
STEPS = 3
FIRST = 7
"""The lowest token that is no special one."""


@torch.no_grad()
def differences(folder: Path, model: Transformer) -> dict[str, float]:
    """Return the largest differences between graphs and model, by the shape of what they read."""
    engine, found = Engine(folder, threads=1), {}
    for n_rows, length in SHAPES:
        if engine.about.limit is not None and length + STEPS > engine.about.limit:
            continue
        draw = torch.Generator().manual_seed(n_rows * 1000 + length)
        tokens_BL = _tokens(model, n_rows, length, draw)
        if engine.decodes:
            ours, theirs = _decoded(engine, model, tokens_BL, draw)
        else:
            ours, theirs = _answered(engine, model, tokens_BL)
        found[f"{n_rows} x {length}"] = apart(ours, theirs)
    return found


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Return how far two tensors are from each other; never less for what is no number."""
    if not (ours.isfinite().all() and theirs.isfinite().all()):
        return torch.inf
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1))


def _tokens(model: Transformer, n_rows: int, length: int, draw: torch.Generator) -> Tensor:
    return torch.randint(min(FIRST, model.spec.vocab_size - 1), model.spec.vocab_size, (n_rows, length), generator=draw)


def _answered(engine: Engine, model: Transformer, tokens_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Compare all that is said of rows, the second of which is shorter."""
    keep_BL = torch.arange(tokens_BL.shape[1]) < torch.tensor(_lengths(tokens_BL))[:, None]
    keep = None if bool(keep_BL.all()) else keep_BL
    segments = (torch.arange(tokens_BL.shape[1]) > 2).long().expand_as(tokens_BL) if engine.about.segmented else None
    batch = Batch(index=torch.arange(len(tokens_BL)), tokens=tokens_BL, keep=keep, segments=segments)
    out = model.run(batch)
    parts = []
    for a, b in zip(engine.answer(batch), (out.hidden, out.logits), strict=True):
        real = keep_BL if a.ndim == 3 and a.shape[1] == keep_BL.shape[1] else slice(None)
        parts.append((a[real].flatten(), b[real].flatten()))
    return torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])


def _lengths(tokens_BL: Tensor) -> list[int]:
    n_rows, length = tokens_BL.shape
    return [max(1, length - (3 if i == 1 else 0)) for i in range(n_rows)]


def _decoded(engine: Engine, model: Transformer, tokens_BL: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Compare the scores after prompts of unequal lengths, and after each of a few more tokens."""
    rows = [row[:n] for row, n in zip(tokens_BL.tolist(), _lengths(tokens_BL), strict=True)]
    steps = engine.steps(rows, STEPS + 1)
    more_BS = _tokens(model, len(rows), STEPS, draw)
    ours = [steps.first(), *(steps.next(more_BS[:, n]) for n in range(STEPS))]
    theirs = [_after(model, rows, more_BS[:, :n]) for n in range(STEPS + 1)]
    return torch.stack(ours), torch.stack(theirs)


def _after(model: Transformer, rows: list[list[int]], more_Bn: Tensor) -> Tensor:
    """Return the scores after each row and some more tokens, by whole passes of one row."""
    found = []
    for row, more in zip(rows, more_Bn, strict=True):
        own = torch.tensor([row])
        if model.spec.topology == "encoder-decoder":
            out = model(own, torch.cat([torch.tensor([BOS]), more])[None])
        else:
            out = model(torch.cat([own[0], more])[None])
        found.append(model.head.logits(out.hidden[:, -1])[0])
    return torch.stack(found)
