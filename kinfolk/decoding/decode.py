"""Generate: continue prompts by a model or an engine; the loop is `kinfolk.decoding.running`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.errors import ShapeError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.decoding.beam import beam_search
from kinfolk.decoding.engines.engine import Engine
from kinfolk.decoding.engines.torch_engine import TorchEngine, UncachedEngine
from kinfolk.decoding.engines.weight_layout import laid_out
from kinfolk.decoding.options import Decoding
from kinfolk.decoding.padding import padded
from kinfolk.decoding.running import RunningBatch
from kinfolk.decoding.sequence import RunningSequence
from kinfolk.models.model import Transformer

Prompt = Sequence[int] | Sequence[Sequence[int]] | Tensor
Stream = Callable[[list[int]], None]


@torch.inference_mode()
def generate(
    model: Transformer | Engine, prompt: Prompt, max_new: int = 16, *, stream: Stream | None = None, **options: Any
) -> Any:
    """Continue a prompt by up to `max_new` tokens; `options` are the fields of `Decoding`.

    A list of token ids gives a list of token ids, the prompt included; a list of lists of any lengths gives a list of
    lists; a tensor gives a tensor, padded where an example stopped early. The prompt of an encoder-decoder is its
    source, and the result is the target from its start token on. `stream` gets the newest token of every example
    (-1: finished) after each step. An engine takes the place of a model that it runs.

    Which tokens start, stop, pad, are forced or suppressed is known by the model (`model.generation`); `ids` and `stop`
    replace that.
    """
    how = Decoding(**{"ids": model.generation} | options)
    prompts, shape_back = _rows(prompt, how.ids.pad_id)
    if isinstance(model, Engine):
        return shape_back(_continued(model, prompts, max_new, how, stream))
    was_training = model.training
    try:
        engine = TorchEngine(model) if how.cached else UncachedEngine(model)
        _check_ids(model, prompts, how.ids)
        with laid_out(model, len(prompts) * how.beams, max_new):
            return shape_back(_continued(engine, prompts, max_new, how, stream))
    finally:
        if was_training:
            model.train()


def _continued(
    engine: Engine, prompts: list[list[int]], max_new: int, how: Decoding, stream: Stream | None
) -> list[list[int]]:
    batch = RunningBatch(engine)
    every = [RunningSequence(prompt=row, max_new=max_new, how=how, choice=i) for i, row in enumerate(prompts)]
    batch.check(every)
    if how.beams > 1 and max_new > 0:
        return beam_search(batch, every, how)
    if max_new > 0:
        batch.start(every)
    while batch.sequences:
        batch.step()
        if stream is not None:
            running = set(batch.sequences)
            stream([sequence.written[-1] if sequence in running else -1 for sequence in every])
        batch.go_on([sequence for sequence in batch.sequences if sequence.finish is None])
    return [[*sequence.prefix(engine.pairs), *sequence.written] for sequence in every]


def _check_ids(model: Transformer, rows: list[list[int]], ids: GenerationIds) -> None:
    """Refuse ids that the vocabulary does not have, which would otherwise fail far from here."""
    largest = max([*map(max, rows), ids.start_id if model.spec.topology == "encoder-decoder" else 0])
    if largest >= model.spec.vocab_size and not model.spec.embedding.one_size:
        raise ShapeError(f"token id {largest} is outside the model's vocabulary of {model.spec.vocab_size}")


def _rows(prompt: Prompt, pad_id: int = 0) -> tuple[list[list[int]], Callable[[list[list[int]]], Any]]:
    """Return the prompts as lists, and how to give the result the form the prompt came in."""
    plain: list[Any] = [x.tolist() if isinstance(x, Tensor) else x for x in prompt]
    one = not plain or not isinstance(plain[0], list | tuple)
    rows = [list(row) for row in ([plain] if one else plain)]
    if not rows or not all(rows):
        raise ShapeError("a prompt needs at least one token")
    if not isinstance(prompt, Tensor):
        return rows, (lambda out: out[0]) if one else (lambda out: out)

    def as_tensor(out: list[list[int]]) -> Tensor:
        padded_BL = padded(out, prompt.device)
        return padded_BL.masked_fill(padded_BL < 0, pad_id)[0 if one else slice(None)]

    return rows, as_tensor
