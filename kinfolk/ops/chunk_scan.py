"""Chunk-wise scan of linear recurrences: a state is carried between chunks, and inside a chunk all
positions are computed together.

The backward pass starts from the state at the border of each chunk and recomputes the chunk, so that only inputs and
one state per chunk are kept, and no tensor grows with the square of the length.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.device import full_precision

Tensors = tuple[Tensor, ...]
Step = Callable[[Tensors, Tensors, Tensors, slice], tuple[Tensor, Tensors]]
"""(state, inputs of a chunk, weights, where the chunk lies) -> (output of the chunk, state after it)."""


def chunk_scan(
    step: Step, inputs: Tensors, state: Tensors, weights: Tensors = (), chunk: int = 64
) -> tuple[Tensor, Tensors]:
    """Apply a step to one chunk after the other; return all outputs and the last state.

    Positions are axis -2 of every input and of the output. `weights` are the same for all chunks. Steps compute in
    single precision at least; outputs have the type of the first input. Gradients reach inputs, weights and state.
    """
    if not torch.is_grad_enabled():
        out, state, _ = _run(step, inputs, state, weights, chunk)
        return out.to(inputs[0].dtype), state
    counts = len(inputs), len(state)
    out, *after = _ChunkScan.apply(step, chunk, counts, *inputs, *state, *weights)
    return out, tuple(after)


def chunks_of(length: int, chunk: int) -> list[slice]:
    """Return the runs of positions that are computed together."""
    return [slice(start, min(start + chunk, length)) for start in range(0, length, chunk)]


def precision(x: Tensor) -> torch.dtype:
    """Return the type of sums over positions: half precisions have too few digits for them."""
    return torch.promote_types(x.dtype, torch.float32)


class _ChunkScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: Step, chunk: int, counts: tuple[int, int], *tensors: Tensor) -> Any:
        n, m = counts
        inputs, state, weights = tensors[:n], tensors[n : n + m], tensors[n + m :]
        out, after, borders = _run(step, inputs, state, weights, chunk)
        ctx.step, ctx.chunk, ctx.counts = step, chunk, counts
        ctx.save_for_backward(*inputs, *weights, *(x for border in borders for x in border))
        return out.to(inputs[0].dtype), *after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, *d_after: Tensor) -> tuple[Any, ...]:
        n, m = ctx.counts
        needs = ctx.needs_input_grad[3:]
        n_weights = len(needs) - n - m
        saved = ctx.saved_tensors
        inputs, weights, borders = saved[:n], saved[n : n + n_weights], saved[n + n_weights :]
        chunks = chunks_of(inputs[0].shape[-2], ctx.chunk)
        d_inputs = [torch.empty_like(x) if needs[i] else None for i, x in enumerate(inputs)]
        d_weights: list[Tensor | None] = [None] * n_weights
        d_state: Sequence[Tensor | None] = d_after
        with full_precision(d_out), torch.enable_grad():
            for number, at in reversed([*enumerate(chunks)]):
                state = _leaves(borders[number * m : (number + 1) * m])
                parts, shared = _leaves(_parts(at, inputs)), _leaves(_raised(weights))
                out, after = ctx.step(state, parts, shared, at)
                d_part = d_out[..., at, :].to(out.dtype)
                roots = [(x, d) for x, d in zip((out, *after), (d_part, *d_state), strict=True) if d is not None]
                ends, given = zip(*roots, strict=True)
                found = torch.autograd.grad(ends, (*parts, *state, *shared), given, allow_unused=True)
                for d_input, d in zip(d_inputs, found[:n], strict=True):
                    if d_input is not None:
                        d_input[..., at, :] = 0.0 if d is None else d
                d_state = found[n : n + m]
                d_weights = [_sum(a, b) for a, b in zip(d_weights, found[n + m :], strict=True)]
        ends_of = (None if d is None else d.to(w.dtype) for d, w in zip(d_weights, weights, strict=True))
        return None, None, None, *d_inputs, *d_state, *ends_of


def _run(
    step: Step, inputs: Tensors, state: Tensors, weights: Tensors, chunk: int
) -> tuple[Tensor, Tensors, list[Any]]:
    """Return the outputs, the last state, and the state before each chunk."""
    outs, borders = [], []
    shared = _raised(weights)
    with full_precision(inputs[0]), torch.no_grad():
        for at in chunks_of(inputs[0].shape[-2], chunk):
            borders.append(state)
            out, state = step(state, _parts(at, inputs), shared, at)
            outs.append(out)
    return outs[0] if len(outs) == 1 else torch.cat(outs, -2), state, borders


def _parts(at: slice, tensors: Tensors) -> Tensors:
    return _raised(tuple(x[..., at, :] for x in tensors))


def _raised(tensors: Tensors) -> Tensors:
    return tuple(x.to(precision(x)) for x in tensors)


def _leaves(tensors: Tensors) -> Tensors:
    return tuple(x.detach().requires_grad_() for x in tensors)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b
