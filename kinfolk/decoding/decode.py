"""The decoding loop: prefill a state with the prompts, then one token per step and example."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.decoding.choose import choose
from kinfolk.decoding.options import Decoding
from kinfolk.models.model import State, Transformer

BOS = 1
"""What a decoder's own sequence starts with where the prompt is an encoder's."""

Prompt = Sequence[int] | Sequence[Sequence[int]] | Tensor


class Stepping(Protocol):
    """What a loop asks of whoever runs a model; `Steps` says what each does."""

    rows: list[list[int]]

    def first(self) -> Tensor: ...

    def next(self, tokens_B: Tensor) -> Tensor: ...

    def select(self, rows_B: Tensor) -> None: ...


class Engine(Protocol):
    """What runs a model elsewhere than in torch, such as `kinfolk.onnx.engine.Engine`."""

    def steps(self, rows: list[list[int]], max_new: int) -> Stepping: ...


@torch.inference_mode()
def generate(
    model: Transformer | Engine,
    prompt: Prompt,
    max_new: int = 16,
    *,
    stream: Callable[[list[int]], None] | None = None,
    **options: Any,
) -> Any:
    """Continue a prompt by up to `max_new` tokens; `options` are the fields of `Decoding`.

    A list of token ids gives a list of token ids, the prompt included; a list of lists of any lengths gives a list of
    lists; a tensor gives a tensor, padded with 0 where an example stopped early. The prompt of an encoder-decoder is
    its source, and the result is the target from its opening token on. `stream` gets the newest token of every example
    (-1: finished) after each step. An engine in the place of a model steps as it does.
    """
    how = Decoding(**options)
    rows, shape_back = _rows(prompt)
    if not isinstance(model, Transformer):
        return shape_back(_write(model.steps(rows, max_new), max_new, how, stream))
    was_training = model.training
    model.eval()
    try:
        return shape_back(_write(Steps(model, rows, max_new, how.cached), max_new, how, stream))
    finally:
        model.train(was_training)


class Steps:
    """Runs a model step by step over prompts of unequal lengths, with its state or, to be compared with, without."""

    def __init__(self, model: Transformer, rows: list[list[int]], max_new: int, cached: bool = True) -> None:
        self.model, self.cached = model, cached
        device = next(model.parameters()).device
        self.source: Batch | None = None
        if model.spec.topology == "encoder-decoder":
            self.source, rows = batch_of(rows, device), [[BOS] for _ in rows]
        self.rows = rows
        n = max(map(len, rows))
        # the last of the new tokens is not read again
        _check(model, n + max(0, max_new - 1))
        self.batch = batch_of(rows, device)
        self.state = model.new_state(len(rows), n + max_new)

    def first(self) -> Tensor:
        """Run the prompts and return the logits that follow each: [B, V]."""
        source = self.source
        batch = self.batch
        if source is not None:
            batch = batch.replace(source=source.tokens, source_keep=source.keep)
        hidden_BLD = self.model.run(batch, self.state if self.cached else None).hidden
        if batch.keep is None:
            return self.model.head.logits(hidden_BLD[:, -1])
        last_B = batch.keep.sum(1) - 1
        return self.model.head.logits(hidden_BLD[torch.arange(len(last_B)), last_B])

    def next(self, tokens_B: Tensor) -> Tensor:
        """Append a token to each example and return the logits that follow."""
        if self.cached:
            step = Batch(index=tokens_B, tokens=tokens_B[:, None])
            return self.model.head.logits(self.model.run(step, self.state).hidden[:, -1])
        self.rows = [[*row, int(token)] for row, token in zip(self.rows, tokens_B.tolist(), strict=True)]
        self.batch = batch_of(self.rows, tokens_B.device)
        return self.first()

    def select(self, rows_B: Tensor) -> None:
        """Make example i a copy of example `rows[i]`."""
        state: State = self.state
        state.select(rows_B)
        self.rows = [self.rows[i] for i in rows_B.tolist()]
        if self.source is not None:
            self.source = self.source.map(lambda x: x[rows_B])


def _write(steps: Stepping, max_new: int, how: Decoding, stream: Callable[[list[int]], None] | None) -> list[list[int]]:
    if how.beams > 1:
        from kinfolk.decoding.beam import beam_search

        return beam_search(steps, max_new, how)
    out = [list(row) for row in steps.rows]
    if max_new == 0:
        return out
    logits_BV = steps.first()
    stop = torch.tensor(how.stop, dtype=torch.long, device=logits_BV.device)
    done_B = torch.zeros(len(out), dtype=torch.bool, device=logits_BV.device)
    for step in range(max_new):
        seen_BL = _padded(out, logits_BV.device) if how.repetition_penalty != 1.0 else done_B[:, None].long()
        token_B = choose(logits_BV, seen_BL, step, how)
        newest = [-1 if d else t for t, d in zip(token_B.tolist(), done_B.tolist(), strict=True)]
        for row, token in zip(out, newest, strict=True):
            if token >= 0:
                row.append(token)
        if stream is not None:
            stream(newest)
        if len(stop):
            done_B = done_B | torch.isin(token_B, stop)
            if bool(done_B.all()):
                break
        if step + 1 < max_new:
            logits_BV = steps.next(token_B)
    return out


def _check(model: Transformer, n: int) -> None:
    if model.spec.topology == "encoder":
        raise SpecError("an encoder does not generate: it has no causal stack")
    if model.limit is not None and n > model.limit:
        raise ShapeError(f"prompt and new tokens need {n} positions, the model has {model.limit}: lower max_new")


def batch_of(rows: list[list[int]], device: torch.device) -> Batch:
    """Return rows of any lengths as one batch, padded on the right."""
    tokens_BL = _padded(rows, device)
    keep_BL = tokens_BL >= 0
    keep = None if bool(keep_BL.all()) else keep_BL
    return Batch(index=torch.arange(len(rows)), tokens=tokens_BL.clamp(min=0), keep=keep)


def _padded(rows: list[list[int]], device: torch.device) -> Tensor:
    """Write rows into a matrix, -1 behind the shorter ones."""
    n = max(map(len, rows))
    return torch.tensor([row + [-1] * (n - len(row)) for row in rows], device=device)


def _rows(prompt: Prompt) -> tuple[list[list[int]], Callable[[list[list[int]]], Any]]:
    """Return the prompts as lists, and how to give the result the form the prompt came in."""
    plain: list[Any] = [x.tolist() if isinstance(x, Tensor) else x for x in prompt]
    one = not plain or not isinstance(plain[0], list | tuple)
    rows = [list(row) for row in ([plain] if one else plain)]
    if not rows or not all(rows):
        raise ShapeError("a prompt needs at least one token")
    if not isinstance(prompt, Tensor):
        return rows, (lambda out: out[0]) if one else (lambda out: out)
    return rows, lambda out: _padded(out, prompt.device).clamp(min=0)[0 if one else slice(None)]
