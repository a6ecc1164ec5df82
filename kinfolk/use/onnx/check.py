"""Holds exported graphs to torch: other batches and lengths than were traced, and decoding step by step."""

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.decoding.engines.onnx.engine import OnnxEngine
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.padding import batch_of
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.models.model import Transformer

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
    engine = ExportedModel(folder, threads=1)
    pairs = _tried(engine, lambda given: _decoded_by(model, given) if engine.decodes else _answered_by(model, given))
    return _largest(pairs)


def between(folder: Path, other: Path) -> tuple[dict[str, float], float]:
    """Return the largest differences between two exports of one model, and the mean relative error of the second."""
    mine, its = ExportedModel(folder, threads=1), ExportedModel(other, threads=1)
    pairs = _tried(its, lambda given: _said(mine, given))
    errors = [relative_error(a, b) for some in pairs.values() for a, b in some]
    return _largest(pairs), statistics.fmean(errors)


@dataclasses.dataclass(frozen=True)
class Given:
    """What is read in one trial: rows of tokens, and some more for each."""

    rows: list[list[int]]
    more_BS: Tensor
    segmented: bool

    @property
    def batch(self) -> Batch:
        """The rows, padded."""
        batch = batch_of(self.rows, torch.device("cpu"))
        after = (torch.arange(batch.tokens.shape[1]) > 2).long()
        return batch.replace(segments=after.expand_as(batch.tokens).contiguous() if self.segmented else None)


def _tried(engine: ExportedModel, by_other: Callable[[Given], list[Tensor]]) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Return what an export and another say, side by side, by the shape of what they read."""
    found = {}
    whole = engine.about.length
    for n_rows, length in [(n, whole or length) for n, length in SHAPES]:
        if engine.about.limit is not None and length + STEPS > engine.about.limit:
            continue
        draw, n_vocab = torch.Generator().manual_seed(n_rows * 1000 + length), engine.about.vocab_size
        tokens = torch.randint(min(FIRST, n_vocab - 1), n_vocab, (n_rows, length + STEPS), generator=draw)
        # the second row is shorter, where rows may be
        rows = [row[: whole or max(1, length - 3 * (i == 1))] for i, row in enumerate(tokens[:, :length].tolist())]
        given = Given(rows, tokens[:, length:], engine.about.segmented)
        found[f"{n_rows} x {length}"] = list(zip(_said(engine, given), by_other(given), strict=True))
    return found


def _largest(pairs: dict[str, list[tuple[Tensor, Tensor]]]) -> dict[str, float]:
    return {shape: max(apart(a, b) for a, b in some) for shape, some in pairs.items()}


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Return how far two tensors are from each other; never less for what is no number."""
    if not (ours.isfinite().all() and theirs.isfinite().all()):
        return torch.inf
    return float(((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)).detach())


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Return the relative error, the norm of a difference over that of the reference; infinity if not finite."""
    if not (ours.isfinite().all() and theirs.isfinite().all()):
        return torch.inf
    return float((torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs).clamp(min=1e-12)).detach())


def _said(engine: ExportedModel, given: Given) -> list[Tensor]:
    """Return what graphs say: the scores after prompts and after each of some more tokens, or all of an answer."""
    if not engine.decodes:
        return _real(given.batch, *engine.answer(given.batch))
    batch, how = RunningBatch(OnnxEngine(engine)), Decoding(ids=engine.generation)
    batch.start([RunningSequence(prompt=row, max_new=STEPS + 1, how=how) for row in given.rows])
    logits = [batch.logits_BV]
    for n in range(STEPS):
        batch.advance(given.more_BS[:, n])
        logits.append(batch.logits_BV)
    return [x_BV for x_BV in logits if x_BV is not None]


def _answered_by(model: Transformer, given: Given) -> list[Tensor]:
    out = model.run(given.batch)
    return _real(given.batch, out.hidden, out.logits)


def _real(batch: Batch, *found: Tensor) -> list[Tensor]:
    """Leave out what is said of padding."""
    if batch.keep is None:
        return list(found)
    return [x[batch.keep] if x.ndim == 3 and x.shape[1] == batch.keep.shape[1] else x for x in found]


def _decoded_by(model: Transformer, given: Given) -> list[Tensor]:
    """Return the scores after each row and some more tokens, by whole passes of one row."""
    return [
        torch.stack([_after(model, row, more[:n]) for row, more in zip(given.rows, given.more_BS, strict=True)])
        for n in range(STEPS + 1)
    ]


def _after(model: Transformer, row: list[int], more: Tensor) -> Tensor:
    if model.spec.topology == "encoder-decoder":
        start = torch.tensor([model.generation.start_id])
        out = model(torch.tensor([row]), torch.cat([start, more])[None])
    else:
        out = model(torch.cat([torch.tensor(row), more])[None])
    return model.head.logits(out.hidden[0, -1:])[0]
