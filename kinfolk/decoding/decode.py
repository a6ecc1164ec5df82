"""The decoding loop: prefill a state with the prompts, then one token per step and example."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from kinfolk.core.annotations import PrefixLength
from kinfolk.core.batch import Batch
from kinfolk.core.device import CPU, host, known_on_host, remember, send
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.decoding.choose import choose
from kinfolk.decoding.constraints import constrain
from kinfolk.decoding.options import Decoding
from kinfolk.models.model import State, Transformer

Prompt = Sequence[int] | Sequence[Sequence[int]] | Tensor


class Stepping(Protocol):
    """What a loop asks of whoever runs a model; `Steps` says what each does."""

    rows: list[list[int]]

    def first(self) -> Tensor: ...

    def next(self, tokens_B: Tensor) -> Tensor: ...

    def select(self, rows_B: Tensor) -> None: ...


class Engine(Protocol):
    """What runs a model elsewhere than in torch, such as `kinfolk.use.onnx.engine.Engine`."""

    generation: GenerationIds

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
    lists; a tensor gives a tensor, padded where an example stopped early. The prompt of an encoder-decoder is its
    source, and the result is the target from its start token on. `stream` gets the newest token of every example
    (-1: finished) after each step. An engine in the place of a model steps as it does.

    Which tokens start, stop, pad, are forced or suppressed is known by the model (`model.generation`); `ids` and `stop`
    replace that.
    """
    how = Decoding(**{"ids": model.generation} | options)
    rows, shape_back = _rows(prompt, how.ids.pad_id)
    if not isinstance(model, Transformer):
        return shape_back(_write(model.steps(rows, max_new), max_new, how, stream))
    _check_ids(model, rows, how.ids)
    was_training = model.training
    model.eval()
    try:
        return shape_back(_write(Steps(model, rows, max_new, how), max_new, how, stream))
    finally:
        model.train(was_training)


class Steps:
    """Runs a model step by step over prompts of unequal lengths, with its state or, to be compared with, without."""

    def __init__(self, model: Transformer, rows: list[list[int]], max_new: int, how: Decoding) -> None:
        self.model, self.cached = model, how.cached
        device = next(model.parameters()).device
        self.source: Batch | None = None
        if model.spec.topology == "encoder-decoder":
            self.source, rows = batch_of(rows, device), [[how.ids.start_id] for _ in rows]
        self.rows = rows
        n = max(map(len, rows))
        # the last of the new tokens is not read again
        _check(model, n + max(0, max_new - 1))
        self.batch = batch_of(rows, device)
        both_ways = model.spec.prompt == "bidirectional"
        self.prefix_B = torch.tensor([len(row) for row in rows], device=device) if both_ways else None
        self.state = model.new_state(len(rows), n + max_new)

    def first(self) -> Tensor:
        """Run the prompts and return the logits that follow each: [B, V]."""
        source = self.source
        batch = self.batch if self.prefix_B is None else self.batch.annotate(PrefixLength(self.prefix_B))
        if source is not None:
            batch = batch.replace(source=source.tokens, source_keep=source.keep)
        hidden_BLD = self.model.run(batch, self.state if self.cached else None).hidden
        if batch.keep is None:
            return self.model.head.logits(hidden_BLD[:, -1])
        device, last_B = hidden_BLD.device, host(batch.keep).sum(1) - 1
        rows_B = torch.arange(len(last_B), device=device)
        return self.model.head.logits(hidden_BLD[rows_B, send(last_B, device)])

    def next(self, tokens_B: Tensor) -> Tensor:
        """Append a token to each example and return the logits that follow."""
        if self.cached:
            column_B1 = tokens_B[:, None]
            if known_on_host(tokens_B) and tokens_B.device.type != "cpu":
                remember(column_B1, host(tokens_B)[:, None])
            step = Batch(index=tokens_B, tokens=column_B1)
            return self.model.head.logits(self.model.run(step, self.state).hidden[:, -1])
        self.rows = [[*row, int(token)] for row, token in zip(self.rows, tokens_B.tolist(), strict=True)]
        self.batch = batch_of(self.rows, tokens_B.device)
        return self.first()

    def select(self, rows_B: Tensor) -> None:
        """Make example i a copy of example `rows[i]`."""
        state: State = self.state
        state.select(rows_B)
        self.rows = [self.rows[i] for i in rows_B.tolist()]
        self.prefix_B = None if self.prefix_B is None else self.prefix_B[rows_B]
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
    device, done = logits_BV.device, [False] * len(out)
    for step in range(max_new):
        # what nobody asks for is not sent
        seen_BL = _padded(out, device) if how.repetition_penalty != 1.0 else logits_BV[:, :0].long()
        logits_BV = constrain(logits_BV, step, max_new, out, how)
        token_B = choose(logits_BV, seen_BL, step, how)
        # the one wait for the device: all else is decided on the host
        ids = token_B.tolist()
        newest = [-1 if over else token for token, over in zip(ids, done, strict=True)]
        for row, token in zip(out, newest, strict=True):
            if token >= 0:
                row.append(token)
        if stream is not None:
            stream(newest)
        done = [over or token in how.stops for token, over in zip(ids, done, strict=True)]
        if all(done):
            break
        if step + 1 < max_new:
            logits_BV = steps.next(token_B if device.type == "cpu" else remember(token_B, torch.tensor(ids)))
    return out


def _check_ids(model: Transformer, rows: list[list[int]], ids: GenerationIds) -> None:
    """Refuse ids that the vocabulary does not have, which would otherwise fail far from here."""
    largest = max([*map(max, rows), ids.start_id if model.spec.topology == "encoder-decoder" else 0])
    if largest >= model.spec.vocab_size and not model.spec.embedding.one_size:
        raise ShapeError(f"token id {largest} is outside the model's vocabulary of {model.spec.vocab_size}")


def _check(model: Transformer, n: int) -> None:
    if model.spec.topology == "encoder":
        raise SpecError("an encoder does not generate: it has no causal stack")
    if model.limit is not None and n > model.limit:
        raise ShapeError(f"prompt and new tokens need {n} positions, the model has {model.limit}: lower max_new")


def batch_of(rows: list[list[int]], device: torch.device) -> Batch:
    """Return rows of any lengths as one batch, padded on the right."""
    tokens_BL = _padded(rows, CPU)
    keep_BL = tokens_BL >= 0
    keep = None if bool(keep_BL.all()) else send(keep_BL, device)
    return Batch(index=torch.arange(len(rows)), tokens=send(tokens_BL.clamp(min=0), device), keep=keep)


def _padded(rows: list[list[int]], device: torch.device) -> Tensor:
    """Write rows into a matrix, -1 behind the shorter ones."""
    n = max(map(len, rows))
    return send(torch.tensor([row + [-1] * (n - len(row)) for row in rows]), device)


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
        padded_BL = _padded(out, prompt.device)
        return padded_BL.masked_fill(padded_BL < 0, pad_id)[0 if one else slice(None)]

    return rows, as_tensor
