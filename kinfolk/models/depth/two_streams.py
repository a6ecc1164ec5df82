"""Backward pass of reversible stacks without stored activations (Gomez et al. 2017, algorithm 1).

A run of a block adds the stack's position to both streams, passes them through its parts, and puts back the positions
that are not active. Everything between the first and the last run is one autograd function: it keeps the last pair of
streams, the small carries of readers and the states of the random generators, and walks back from there.
"""

import contextlib
import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from kinfolk.core.context import Context
from kinfolk.core.device import autocast_dtype
from kinfolk.layers.part import KeyValues
from kinfolk.layers.positions.position import PositionModule
from kinfolk.models.reader import LayerReader, LayerReading

Pair = tuple[Tensor, Tensor]


def mean_of(pair: Pair) -> Tensor:
    """Return the hidden states of two streams."""
    return (pair[0] + pair[1]) * 0.5


def coupled(stack: Any, n: int, pair: Pair, active_BL: Tensor | None, ctx: Context, states: list[Any] | None) -> Pair:
    """Return both streams after the n-th run, under ordinary autograd."""
    place_BLD = place(stack, n, pair[0], ctx)
    given = pair if place_BLD is None else (pair[0] + place_BLD, pair[1] + place_BLD)
    block = stack.blocks[stack.order[n]]
    if active_BL is None:
        after: Pair = stack.call(block, given, ctx, states)
        return after
    return _put_back(stack.call(_masked, block, given, active_BL[..., None], ctx, states), pair, active_BL[..., None])


def _masked(block: Any, pair: Pair, active_BL1: Tensor, ctx: Context, states: list[Any] | None) -> Pair:
    """Run a block whose parts change active positions only."""
    for j, (part, residual) in enumerate(zip(block.parts, block.residuals, strict=True)):
        with ctx.scope(str(j)):
            y_BLD, _ = residual.of.branch(pair[1], part, ctx, None if states is None else states[j])
        pair = (pair[1], pair[0] + y_BLD * active_BL1)
    return pair


def _put_back(after: Pair, before: Pair, active_BL1: Tensor) -> Pair:
    return torch.where(active_BL1, after[0], before[0]), torch.where(active_BL1, after[1], before[1])


def place(stack: Any, n: int, x_BLD: Tensor, ctx: Context) -> Tensor | None:
    """Return what the stack's position adds before the n-th run; None: nothing."""
    if type(stack.position) is PositionModule:
        return None
    zeros_BLD = torch.zeros_like(x_BLD)
    place_BLD: Tensor = stack.position.add(zeros_BLD, ctx, n + 1)
    return None if place_BLD is zeros_BLD else place_BLD


def walk_lightly(stack: Any, pair: Pair, ctx: Context, states: list[Any] | None, readings: list[LayerReading]) -> Pair:
    """Run without keeping activations. Readings that need all states at once get them, with gradients."""
    streams = [(reading, reader) for reading in readings if (reader := reading.reader.streaming) is not None]
    others = [reading for reading in readings if reading.reader.streaming is None]
    each = bool(others) or ctx.asked("hidden")
    run = _Run(stack, ctx, states, [reader for _, reader in streams], each)
    carries = [reader.begin(pair[0], ctx) for _, reader in streams]
    totals = [reader.start(pair[0]) for _, reader in streams]
    out = iter(_Backwards.apply(run, carries, *pair, *totals, *run.outer, *run.weights))
    after = next(out), next(out)
    for name in run.side_names:
        ctx.add_loss(name, next(out))
    for (reading, _), carry in zip(streams, run.carries, strict=True):
        reading.total = next(out)
        reading.carry = _with_floats(carry, [next(out) for _ in _floats(carry)])
    hidden = list(out)
    for n, states_BLD in enumerate(hidden):
        for reading in others:
            reading.add(n, states_BLD)
        if run.steps[n].halves and ctx.asked("hidden"):
            with ctx.scope(str(n)):
                ctx.tap("hidden", states_BLD)
    return after


def _floats(carry: Any) -> list[Tensor]:
    """Return the tensors of a carry that may have gradients."""
    return [x for x in carry if isinstance(x, Tensor) and x.is_floating_point()]


def _with_floats(carry: Any, floats: list[Tensor]) -> Any:
    """Return a carry with others in their place."""
    rest = iter(floats)
    values = (next(rest) if isinstance(x, Tensor) and x.is_floating_point() else x for x in carry)
    return type(carry)(*values) if carry else carry


@dataclasses.dataclass(eq=False)
class _Half:
    """Half of a reversible block: one part and its residual, and the random state before it."""

    part: nn.Module
    residual: Any
    weights: list[Tensor]
    at: tuple[int, int]  # run and part
    chance: tuple[Tensor, Any] | None = None

    def remember_chance(self, *inputs: Tensor) -> None:
        self.chance = (torch.get_rng_state(), get_device_states(*inputs))

    def repeat_chance(self, device_type: str) -> None:
        assert self.chance is not None
        torch.set_rng_state(self.chance[0])
        set_device_states(*self.chance[1], device_type=device_type)


@dataclasses.dataclass(eq=False)
class _Step:
    """Run of one block: its parts (none, if it is skipped), the active positions, and what readers carried."""

    n: int
    halves: list[_Half]
    active_BL1: Tensor | None = None
    carries: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)


class _Run:
    """One pass through a reversible stack: its steps, the tensors they read from outside, and its readers."""

    def __init__(
        self, stack: Any, ctx: Context, states: list[Any] | None, readers: list[LayerReader], each: bool
    ) -> None:
        self.stack, self.ctx, self.states, self.readers, self.each = stack, ctx, states, readers, each
        self.steps: list[_Step] = []
        self.side_names: list[str] = []
        self.carries: list[Any] = []
        common = [p for p in (*stack.shared.parameters(), *stack.position.parameters()) if p.requires_grad]
        self.halves = {n: self._halves(n, i, common) for n, i in stack.runs()}
        every = [w for halves in self.halves.values() for half in halves for w in half.weights]
        every += [*common, *(w for reader in readers for w in reader.weights if w.requires_grad)]
        self.weights = list({id(w): w for w in every}.values())
        self.outer = self._outer()

    def _halves(self, n: int, i: int, common: list[Tensor]) -> list[_Half]:
        block, halves = self.stack.blocks[i], []
        for j, (part, residual) in enumerate(zip(block.parts, block.residuals, strict=True)):
            own = [p for p in (*part.parameters(), *residual.parameters()) if p.requires_grad]
            halves.append(_Half(part, residual.of, [*own, *common], (n, j)))
        return halves

    def _outer(self) -> list[Tensor]:
        """Return tensors from outside the stack: the encoder's, and keys and values that were given."""
        output = self.ctx.encoder_output
        tensors = [] if output is None else list(output.tensors.values())
        for state in self._given.values():
            tensors += [state.k_BGMK, state.v_BGMK]
        return tensors

    @property
    def _given(self) -> dict[tuple[int, int], KeyValues]:
        numbered = ((n, j, state) for n, row in enumerate(self.states or ()) for j, state in enumerate(row or ()))
        return {(n, j): state for n, j, state in numbered if isinstance(state, KeyValues)}

    def bind(self, outer: list[Tensor]) -> None:
        """Read these tensors instead of those from outside."""
        output, rest = self.ctx.encoder_output, iter(outer)
        self.bound = self.ctx
        if output is not None:
            self.bound = self.ctx.replace(
                encoder_output=output.replace(**{name: next(rest) for name in output.tensors})
            )
        self.given = {
            at: dataclasses.replace(state, k_BGMK=next(rest), v_BGMK=next(rest)) for at, state in self._given.items()
        }

    def branch(self, half: _Half, x_BLD: Tensor, quiet: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Run a part; side losses are returned, not added."""
        sides: dict[str, Tensor] = {}
        n, j = half.at
        ctx = self.bound.layer(n).replace(side_losses=sides, **({"taps": None} if quiet else {}))
        state = self.given.get(half.at, None if self.states is None else self.states[n][j])
        with ctx.scope(str(j)):
            return half.residual.branch(x_BLD, half.part, ctx, state)[0], sides

    def note_format(self, x: Tensor) -> None:
        """Note the precision of the pass; weights cast without gradients must not be met again with them."""
        self.device_type, self.half = x.device.type, autocast_dtype(x.device)

    @property
    def same_format(self) -> contextlib.AbstractContextManager[Any]:
        """Compute in the precision of the pass."""
        if not torch.amp.is_autocast_available(self.device_type):
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, self.half, enabled=self.half is not None, cache_enabled=False)

    @property
    def chance_kept(self) -> contextlib.AbstractContextManager[None]:
        """Leave the caller's random state as it is."""
        chances = [half.chance for step in self.steps for half in step.halves if half.chance is not None]
        devices = chances[0][1][0] if chances else []
        # without devices only the generator of the CPU is kept, whatever the type
        return torch.random.fork_rng(devices=devices, device_type=self.device_type if devices else "cuda")


class _Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, carries: list[Any], a: Tensor, b: Tensor, *tensors: Any) -> tuple[Any, ...]:
        n_readers, n_outer = len(run.readers), len(run.outer)
        totals, outer = list(tensors[:n_readers]), tensors[n_readers : n_readers + n_outer]
        walk = _Forwards(run, carries, totals)
        run.note_format(b)
        run.bind(list(outer))
        with run.same_format:
            a, b = walk((a, b))
        run.side_names, run.carries = list(walk.sides), walk.carries
        ctx.run, ctx.n_readers = run, n_readers
        ctx.save_for_backward(a, b, *outer)
        of_readers = [x for t, carry in zip(walk.totals, walk.carries, strict=True) for x in (t, *_floats(carry))]
        return a, b, *walk.sides.values(), *of_readers, *walk.hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dp: Tensor, dq: Tensor, *grads: Any) -> tuple[Any, ...]:
        run: _Run = ctx.run
        p, q, *outer = ctx.saved_tensors
        needs = ctx.needs_input_grad[4 + ctx.n_readers :]
        outer = [x.detach().requires_grad_(need) for x, need in zip(outer, needs, strict=False)]
        run.bind(outer)
        back = _Return(run, outer, list(grads))
        with run.chance_kept, torch.enable_grad(), run.same_format:
            for step in reversed(run.steps):
                p, q, dp, dq = back(step, p, q, dp, dq)
        return None, None, dp, dq, *back.d_totals, *(back.of(x) for x in outer), *(back.of(w) for w in run.weights)


class _Forwards:
    """Forward pass of a reversible stack, without gradients."""

    def __init__(self, run: _Run, carries: list[Any], totals: list[Any]) -> None:
        self.run, self.carries, self.totals = run, carries, totals
        self.sides: dict[str, Tensor] = {}
        self.hidden: list[Tensor] = []

    def __call__(self, pair: Pair) -> Pair:
        run, readers = self.run, self.run.readers
        reads = any(type(reader) is not LayerReader for reader in readers)
        for n in range(len(run.stack.order)):
            if run.states is None and any(r.done(c) for r, c in zip(readers, self.carries, strict=True)):
                break
            step = _Step(n, run.halves.get(n, []))
            with run.ctx.scope(str(n)):
                if reads:
                    step.carries = [
                        (c, r.decide(n, mean_of(pair), c)) for r, c in zip(readers, self.carries, strict=True)
                    ]
                    self.carries = [after for _, after in step.carries]
                active = [x for r, c in zip(readers, self.carries, strict=True) if (x := r.active(c)) is not None]
                step.active_BL1 = active[0][..., None] if active else None
                pair = self._through(step, pair)
                if reads:
                    every = zip(readers, self.carries, self.totals, strict=True)
                    self.totals = [r.add(n, mean_of(pair), c, t) for r, c, t in every]
                if run.ctx.hears("hidden") and not run.ctx.asked("hidden"):
                    run.ctx.tap("hidden", mean_of(pair))
            run.steps.append(step)
            if run.each:
                self.hidden.append(mean_of(pair))
        return pair

    def _through(self, step: _Step, pair: Pair) -> Pair:
        if not step.halves:
            return pair
        before, place_BLD = pair, place(self.run.stack, step.n, pair[0], self.run.ctx)
        a, b = pair if place_BLD is None else (pair[0] + place_BLD, pair[1] + place_BLD)
        for half in step.halves:
            half.remember_chance(b)
            y, sides = self.run.branch(half, b, quiet=False)
            a, b = b, a + (y if step.active_BL1 is None else y * step.active_BL1)
            for name, value in sides.items():
                self.sides[name] = self.sides[name] + value if name in self.sides else value
        return (a, b) if step.active_BL1 is None else _put_back((a, b), before, step.active_BL1)


class _Return:
    """Backward pass of a reversible stack: streams and gradients from after a step to before it."""

    def __init__(self, run: _Run, outer: list[Tensor], grads: list[Any]) -> None:
        self.run, self.outer = run, [x for x in outer if x.requires_grad]
        n_sides = len(run.side_names)
        self.d_sides = dict(zip(run.side_names, grads, strict=False))
        rest = iter(grads[n_sides:])
        self.d_totals, self.d_carries = [], []
        for carry in run.carries:
            self.d_totals.append(next(rest))
            self.d_carries.append([next(rest) for _ in _floats(carry)])
        self.d_hidden = list(rest)
        self._sums: dict[int, Tensor] = {}

    def of(self, tensor: Tensor) -> Tensor | None:
        """Return the gradient of a weight or of a tensor from outside."""
        return self._sums.get(id(tensor))

    def __call__(self, step: _Step, p: Tensor, q: Tensor, dp: Tensor, dq: Tensor) -> tuple[Tensor, ...]:
        if self.run.each:
            # the hidden states of a layer are the mean of both streams after it
            d_half = self.d_hidden.pop() * 0.5
            dp, dq = dp + d_half, dq + d_half
        dp, dq = self._added(step, (p, q), dp, dq)
        p, q, dp, dq = self._through(step, p, q, dp, dq) if step.halves else (p, q, dp, dq)
        dp, dq = self._decided(step, (p, q), dp, dq)
        return p, q, dp, dq

    def _added(self, step: _Step, pair: Pair, dp: Tensor, dq: Tensor) -> Pair:
        """Go back through what readers added to their totals."""
        for k, (_, carry) in enumerate(step.carries):
            reader, d_total = self.run.readers[k], self.d_totals[k]
            if d_total is None:
                continue
            h = mean_of(pair).detach().requires_grad_()
            leaves = [x.detach().requires_grad_() for x in _floats(carry)]
            total = reader.add(step.n, h, _with_floats(carry, leaves), torch.zeros_like(d_total))
            if not total.requires_grad:
                continue
            dh, d_leaves = self._grad([total], [d_total], h, leaves, reader.weights)
            self.d_carries[k] = [_plus(x, y) for x, y in zip(self.d_carries[k], d_leaves, strict=True)]
            # a reader sees the mean of both streams, so that each has half of its gradient
            dp, dq = (dp, dq) if dh is None else (dp + dh * 0.5, dq + dh * 0.5)
        return dp, dq

    def _decided(self, step: _Step, pair: Pair, dp: Tensor, dq: Tensor) -> Pair:
        """Go back through what readers carried on."""
        for k, (carry, _) in enumerate(step.carries):
            reader = self.run.readers[k]
            h = mean_of(pair).detach().requires_grad_()
            leaves = [x.detach().requires_grad_() for x in _floats(carry)]
            pairs = zip(_floats(reader.decide(step.n, h, _with_floats(carry, leaves))), self.d_carries[k], strict=True)
            known = [(x, d) for x, d in pairs if d is not None and x.requires_grad]
            outs, d_outs = [x for x, _ in known], [d for _, d in known]
            dh, self.d_carries[k] = (
                self._grad(outs, d_outs, h, leaves, reader.weights) if outs else (None, [None] * len(leaves))
            )
            dp, dq = (dp, dq) if dh is None else (dp + dh * 0.5, dq + dh * 0.5)
        return dp, dq

    def _through(self, step: _Step, p: Tensor, q: Tensor, dp: Tensor, dq: Tensor) -> tuple[Tensor, ...]:
        """Go back through the parts of a block."""
        active, after, d_after = step.active_BL1, (p, q), (dp, dq)
        place_BLD = place(self.run.stack, step.n, p, self.run.ctx)
        if active is not None:
            # a position that was put back holds what it had before; inside the block it also had its place, and both
            # streams changed sides with every part
            inside = after if place_BLD is None else (p + place_BLD.detach(), q + place_BLD.detach())
            inside = inside if len(step.halves) % 2 == 0 else (inside[1], inside[0])
            p, q = _put_back(after, inside, active)
            dp, dq = dp * active, dq * active
        for half in reversed(step.halves):
            p, q, dp, dq = self._undo(half, p, q, dp, dq, active)
        if place_BLD is not None:
            if place_BLD.requires_grad:
                self._sum(list(self.run.stack.position.parameters()), [place_BLD], [dp + dq])
            p, q = p - place_BLD.detach(), q - place_BLD.detach()
        if active is not None:
            p, q = _put_back((p, q), after, active)
            dp, dq = dp + d_after[0] * ~active, dq + d_after[1] * ~active
        return p, q, dp, dq

    def _undo(
        self, half: _Half, p: Tensor, q: Tensor, dp: Tensor, dq: Tensor, active: Tensor | None
    ) -> tuple[Tensor, ...]:
        run = self.run
        half.repeat_chance(run.device_type)
        x = p.detach().requires_grad_()
        y, sides = run.branch(half, x, quiet=True)
        y = y if active is None else y * active
        outputs, d_outputs = [y], [dq.to(y.dtype)]
        for name, value in sides.items():
            if value.requires_grad:
                outputs.append(value)
                d_outputs.append(self.d_sides[name])
        (dx,) = self._sum([*half.weights, *self.outer], outputs, d_outputs, [x])
        with torch.no_grad():
            # (p, q) is (b, a + y): so b is p, a is q - y, and y has the gradient of q
            return q - y, p, dq, dp if dx is None else dp + dx

    def _grad(
        self, outputs: list[Tensor], d_outputs: list[Tensor], h: Tensor, leaves: list[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor | None, list[Any]]:
        known = [w for w in weights if w.requires_grad]
        dh, *d_leaves = self._sum(known, outputs, d_outputs, [h, *leaves])
        return dh, d_leaves

    def _sum(
        self, tensors: list[Tensor], outputs: list[Tensor], d_outputs: list[Tensor], own: list[Tensor] | None = None
    ) -> list[Any]:
        """Add the gradients of weights to their sums; return those of `own`."""
        own = own or []
        grads = torch.autograd.grad(outputs, [*own, *tensors], d_outputs, allow_unused=True)
        for tensor, grad in zip(tensors, grads[len(own) :], strict=True):
            if grad is not None:
                before = self._sums.get(id(tensor))
                # not in place: autograd may return one tensor as the gradient of several
                self._sums[id(tensor)] = grad if before is None else before + grad
        return list(grads[: len(own)])


def _plus(x: Tensor | None, y: Tensor | None) -> Tensor | None:
    return y if x is None else x if y is None else x + y
