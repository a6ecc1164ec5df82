"""Chunk-wise scan of linear recurrences: a state is carried between runs of chunks, and inside a chunk all
positions are computed together.

The backward pass starts from the state at the border of each run and recomputes the run, so that only inputs and
one state per run are kept, and no tensor grows with the square of the length. What does not need the state is computed
for all chunks of a run in one batched product each; `recurrent_states` and `corrected_states` then carry the state
from chunk to chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kinfolk.core.device import full_precision

SOLVED = 16
"""Rows of a triangular matrix that are inverted by substitution; of larger ones, blocks are multiplied."""
Tensors = tuple[Tensor, ...]
Step = Callable[[Tensors, Tensors, Tensors, slice], tuple[Tensor, Tensors]]
"""(state, inputs of a run, weights, where the run lies) -> (output of the run, state after it)."""
Pull = Callable[[Tensors, Tensors, slice, Tensor, Tensors], Tensors]
"""(state, inputs of a run, where it lies, gradients of its output and of the state after it) -> gradients of inputs and
state."""


def chunk_scan(
    step: Step, inputs: Tensors, state: Tensors, weights: Tensors, runs: list[slice], pull: Pull | None = None
) -> tuple[Tensor, Tensors]:
    """Apply a step to one run of positions after the other; return all outputs and the last state.

    Positions are axis -2 of every input and of the output. `weights` are the same for all runs. Steps compute in
    single precision at least; outputs have the type of the first input. Gradients reach inputs, weights and state:
    by `pull`, which recomputes what it needs, or by autograd through the step done again. Heads of a position lie
    together in the output, as what follows reads them.
    """
    if not torch.is_grad_enabled():
        return _run(step, inputs, state, weights, runs, [])
    counts = len(inputs), len(state)
    out, *after = _ChunkScan.apply(step, pull, runs, counts, *inputs, *state, *weights)
    return out, tuple(after)


def runs_of(length: int, chunk: int, several: int = 1) -> list[slice]:
    """Return runs of up to `several` whole chunks, and what is left at the end as a shorter chunk of its own."""
    # the rest is a run of its own, so that all chunks of a run are of one size and can be stacked
    whole, run = length - length % chunk, several * chunk
    runs = [slice(start, min(start + run, whole)) for start in range(0, whole, run)]
    return runs if whole == length else [*runs, slice(whole, length)]


def chunks_of(length: int, chunk: int) -> list[slice]:
    """Return the chunks of all runs."""
    return runs_of(length, chunk)


def split(x_BHLR: Tensor, chunk: int) -> Tensor:
    """Return the chunks of a run, [n, B, H, c, R]; a run shorter than a chunk is one."""
    return x_BHLR.unflatten(-2, (-1, min(chunk, x_BHLR.shape[-2]))).movedim(-3, 0).contiguous()


def join(x_nBHcR: Tensor) -> Tensor:
    """Return chunks as one run, [B, H, L, R]."""
    return x_nBHcR.movedim(0, -3).flatten(-3, -2)


def recurrent_states(decay: Tensor, written: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return $S_n$ before each chunk, $S_{n+1} = d_n S_n + w_n$, [n, B, H, R, K], and the state after the last."""
    states, after = _RecurrentStates.apply(decay, written, state)
    return states, after


def corrected_states(
    lower: Tensor, rights: tuple[Tensor, Tensor], decay: Tensor, write: Tensor, written: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return $S_n$ before each chunk, the corrections $u_n$, and the state after the last chunk.

    $(I + L_n)\, u_n = r_n + f_n S_n$ and $S_{n+1} = d_n S_n + b_n^\top u_n + w_n$, with `rights` $(f, r)$,
    [n, B, H, c, R] and [n, B, H, c, K], `write` $b$ and `written` $w$. Only what is below the diagonal of `lower` $L$
    counts.
    """
    states, u, after = _CorrectedStates.apply(lower, *rights, decay, write, written, state)
    return states, u, after


def precision(x: Tensor) -> torch.dtype:
    """Return the type of sums over positions: half precisions have too few digits for them."""
    return torch.promote_types(x.dtype, torch.float32)


class _ChunkScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, step: Step, pull: Pull | None, runs: list[slice], counts: tuple[int, int], *tensors: Tensor
    ) -> Any:
        n, m = counts
        inputs, state, weights = tensors[:n], tensors[n : n + m], tensors[n + m :]
        borders: list[Tensor] = []
        out, after = _run(step, inputs, state, weights, runs, borders)
        ctx.step, ctx.pull, ctx.runs, ctx.counts = step, pull, runs, counts
        ctx.save_for_backward(*inputs, *weights, *borders)
        return out, *after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, *d_after: Tensor) -> tuple[Any, ...]:
        n, m = ctx.counts
        needs = ctx.needs_input_grad[4:]
        n_weights = len(needs) - n - m
        saved = ctx.saved_tensors
        inputs, weights, borders = saved[:n], saved[n : n + n_weights], saved[n + n_weights :]
        d_inputs = [torch.empty_like(x) if needs[i] else None for i, x in enumerate(inputs)]
        d_weights: list[Tensor | None] = [None] * n_weights
        d_state: Sequence[Tensor | None] = d_after
        with full_precision(d_out):
            for number, at in reversed([*enumerate(ctx.runs)]):
                state, parts = borders[number * m : (number + 1) * m], _parts(at, inputs)
                d_part = d_out[..., at, :].to(precision(d_out))
                if ctx.pull is None:
                    found = _autograd(ctx.step, (state, parts, weights), at, (d_part, *d_state))
                else:
                    found = ctx.pull(state, parts, at, d_part, d_state)
                for d_input, d in zip(d_inputs, found[:n], strict=True):
                    if d_input is not None:
                        d_input[..., at, :] = 0.0 if d is None else d
                d_state = found[n : n + m]
                d_weights = [_sum(a, b) for a, b in zip(d_weights, found[n + m :], strict=True)]
        # gradients of weights are summed over runs in single precision and rounded once
        ends_of = (None if d is None else d.to(w.dtype) for d, w in zip(d_weights, weights, strict=True))
        return None, None, None, None, *d_inputs, *d_state, *ends_of


def _autograd(
    step: Step, given: tuple[Tensors, Tensors, Tensors], at: slice, d_ends: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Do a step again; return the gradients of its inputs, of the state before it and of the weights."""
    with torch.enable_grad():
        state, parts, shared = (_leaves(_raised(x)) for x in given)
        out, after = step(state, parts, shared, at)
        roots = [(x, d) for x, d in zip((out, *after), d_ends, strict=True) if d is not None]
        ends, d_given = zip(*roots, strict=True)
        return torch.autograd.grad(ends, (*parts, *state, *shared), d_given, allow_unused=True)


class _RecurrentStates(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, decay: Tensor, written: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        states = torch.empty_like(written)
        for n in range(len(written)):
            states[n] = state
            state = torch.addcmul(written[n], decay[n], states[n])
        ctx.save_for_backward(decay, states)
        return states, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_states: Tensor, d_after: Tensor) -> tuple[Any, ...]:
        decay, states = ctx.saved_tensors
        d_written = torch.empty_like(states)
        for n in reversed(range(len(states))):
            # the adjoint is the same recurrence from the other end, and the gradient of w_n is that of S_(n+1)
            d_written[n] = d_after
            d_after = torch.addcmul(d_states[n], decay[n], d_written[n])
        return (d_written * states).sum_to_size(decay.shape), d_written, d_after


class Corrections(NamedTuple):
    """Results of `correct`: (I + L)^-1, the states [n + 1, B, H, R, K], and the corrections u, [n, B, H, c, K]."""

    inverse: Tensor
    states: Tensor
    u: Tensor


def correct(
    lower: Tensor, rights: tuple[Tensor, Tensor], decay: Tensor, write: Tensor, written: Tensor | None, state: Tensor
) -> Corrections:
    """Compute `corrected_states` without a gradient. Cost per chunk: c R K (2 + 2) + 2 c^2 K, and the inverse."""
    f, r = rights
    inverse = _inverse(lower.flatten(0, -3)).view(lower.shape)
    u, states = torch.empty_like(r), r.new_empty(len(r) + 1, *state.shape)
    states[0] = state
    for n in range(len(r)):
        _product(inverse[n], _plus_product(r[n], f[n], states[n]), u[n])
        torch.mul(decay[n], states[n], out=states[n + 1])
        if written is not None:
            states[n + 1] += written[n]
        _plus_product(states[n + 1], write[n].mT, u[n], states[n + 1])
    return Corrections(inverse, states, u)


def pull_corrections(
    made: Corrections, f: Tensor, decay: Tensor, write: Tensor, d_made: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, ...]:
    r"""Return the gradients of L, f, r, d, b, w and of the first state, from those of the states, of u and of the last.

    With $T = (I + L)^{-1}$: $dr = T^\top du$, and then $df = dr\,S^\top$ and $dL = -dr\,u^\top$.
    """
    (inverse, states, u), (d_states, d_u, d_after) = made, d_made
    d_r, d_written = torch.empty_like(u), states.new_empty(len(u) + 1, *d_after.shape)
    d_written[-1] = d_after
    for n in reversed(range(len(u))):
        _product(inverse[n].mT, _plus_product(d_u[n], write[n], d_written[n + 1]), d_r[n])
        torch.addcmul(d_states[n], decay[n], d_written[n + 1], out=d_written[n])
        _plus_product(d_written[n], f[n].mT, d_r[n], d_written[n])
    d_before, d_written, states = d_written[0], d_written[1:], states[:-1]
    d_lower = (d_r @ u.mT).neg_()
    # above the diagonal the mask with which the caller made L clears the gradient; the diagonal is inside that mask
    d_lower.diagonal(dim1=-2, dim2=-1).zero_()
    d_decay = (d_written * states).sum_to_size(decay.shape)
    return d_lower, d_r @ states.mT, d_r, d_decay, u @ d_written.mT, d_written, d_before


def inverse_work(size: int) -> int:
    """Return the FLOPs of the inverse that `correct` takes of one chunk, as `_inverse` divides it."""
    if size <= SOLVED or size % 2:
        return size**3
    half = size // 2
    # two inverses of halves, and two products of half^3 multiplications and as many additions each
    return 2 * inverse_work(half) + 4 * half**3


class _CorrectedStates(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lower: Tensor, f: Tensor, r: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        decay, write, written, state = rest
        made = correct(lower, (f, r), decay, write, written, state)
        ctx.save_for_backward(*made, f, decay, write)
        ctx.adds = written is not None
        return made.states[:-1], made.u, made.states[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_made: Tensor) -> tuple[Any, ...]:
        inverse, states, u, f, decay, write = ctx.saved_tensors
        d_states, d_u, d_after = d_made
        *found, d_written, d_before = pull_corrections(
            Corrections(inverse, states, u), f, decay, write, (d_states, d_u, d_after)
        )
        return *found, d_written if ctx.adds else None, d_before


def _inverse(lower_ncc: Tensor) -> Tensor:
    """Return (I + lower)^-1 of strictly lower triangular matrices, larger ones from the inverses of their halves."""
    size = lower_ncc.shape[-1]
    if size <= SOLVED or size % 2:
        identity = torch.eye(size, dtype=lower_ncc.dtype, device=lower_ncc.device)
        return torch.linalg.solve_triangular(lower_ncc, identity, upper=False, unitriangular=True)
    half = size // 2
    upper, under, right = lower_ncc[:, :half, :half], lower_ncc[:, half:, :half], lower_ncc[:, half:, half:]
    # [[A, 0], [C, B]]^-1 = [[A^-1, 0], [-B^-1 C A^-1, B^-1]]; both halves are inverted in one batch
    first, second = _inverse(torch.cat([upper, right])).chunk(2)
    inverse = torch.zeros_like(lower_ncc)
    inverse[:, :half, :half], inverse[:, half:, half:] = first, second
    inverse[:, half:, :half] = -(second @ under @ first)
    return inverse


def _plus_product(x: Tensor, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return x + a b for stacks of matrices."""
    given = (t.flatten(0, 1) for t in (x, a, b))
    return torch.baddbmm(*given, out=None if out is None else out.flatten(0, 1)).view(x.shape)


def _product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write a b for stacks of matrices."""
    # only batch and heads are merged, so that `out` stays a view: a copy would be written and lost
    torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out=out.flatten(0, 1))


def _run(
    step: Step, inputs: Tensors, state: Tensors, weights: Tensors, runs: list[slice], borders: list[Tensor]
) -> tuple[Tensor, Tensors]:
    """Return the outputs and the last state; add the state before each run to `borders`."""
    out, shared = None, _raised(weights)
    # autocast would round states to 16 bits in every product
    with full_precision(inputs[0]), torch.no_grad():
        for at in runs:
            borders.extend(state)
            part, state = step(state, _parts(at, inputs), shared, at)
            if len(runs) == 1:
                return part.to(inputs[0].dtype), state
            if out is None:
                out = _whole(part, runs[-1].stop, inputs[0].dtype)
            # at once, while the part is in the cache
            out[..., at, :] = part
    assert out is not None
    return out, state


def _whole(part: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """Return memory for the outputs of all positions; where there are heads, those of a position lie together."""
    *before, _, width = part.shape
    if len(before) == 1:
        return part.new_empty(*before, length, width, dtype=dtype)
    return part.new_empty(before[0], length, *before[1:], width, dtype=dtype).transpose(1, 2)


def _parts(at: slice, tensors: Tensors) -> Tensors:
    return _raised(tuple(x[..., at, :] for x in tensors))


def _raised(tensors: Tensors) -> Tensors:
    return tuple(x.to(precision(x)) for x in tensors)


def _leaves(tensors: Tensors) -> Tensors:
    return tuple(x.detach().requires_grad_() for x in tensors)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b
