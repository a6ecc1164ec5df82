"""Depth without a memory of depth: a stack whose inputs are found again from its outputs.

The stream is two. A part reads one and adds to the other, so that what it added can be made again and taken away:

    (a, b) -> (b, a + branch(b))        and back: (p, q) -> (q - branch(p), p)

The backward pass walks the stack from its end, making every part's input from its output and running the part once
more for its gradient; nothing is kept but the last two streams. Dropout falls where it fell: the state of the random
numbers before every part is kept (a few kilobytes) and set again, and the caller's is left alone.
"""

import contextlib
import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from kinfolk.core.context import Context
from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.device import autocast_dtype
from kinfolk.core.encoder_output import EncoderOutput, LayerwiseOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.module import Dims, Linear, Module
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.residuals.residual import Residual, ResidualModule
from kinfolk.models.stack import DepthModule, Stack, StackModule

Pair = tuple[Tensor, Tensor]


Join = Literal["mean", "concat", "wide"]


class Coupled(Residual, kind="coupled"):
    """(a, b) -> (b, a + branch(b)), with the branch of an additive residual (Gomez et al. 2017, equation 6)."""

    of: Residual

    def __post_init__(self) -> None:
        if not self.of.additive:
            raise SpecError(
                f"residual: {self.of.kind!r} does not add a branch to the stream, so it cannot be undone; "
                "use 'pre-norm', 're-zero' or 'fixup'"
            )

    def build(self, dims: Dims) -> ResidualModule:
        return _Coupled(self, dims)

    def cost(self, dims: Dims) -> Cost:
        return self.of.cost(dims)


class _Coupled(ResidualModule):
    def __init__(self, spec: Coupled, dims: Dims) -> None:
        super().__init__()
        self.of: Any = spec.of.build(dims)

    def forward(self, pair: Pair, part: Module, ctx: Context, state: Any) -> tuple[Pair, Any]:
        y_BLD, state = self.of.branch(pair[1], part, ctx, state)
        return (pair[1], pair[0] + y_BLD), state


class Reversible(Stack, kind="reversible"):
    """A stack that keeps no activations (Gomez et al. 2017; Kitaev et al. 2020, section 3).

    Both streams start as the embedding. `join` "mean" takes their mean before the norm; "concat" has a norm over
    both side by side and a map back to the model's width; "wide" has no map, and a head twice as wide (Trax, Hugging
    Face), which so cannot be tied.
    In half precision what is found again drifts from what was; streams stay in float32 under autocast. A part that
    chooses (hashes, experts) chooses again from inputs that are equal to rounding: only a tie can fall otherwise.
    """

    join: Join = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.position, NoPosition):
            raise SpecError("position: a reversible stack adds none between its blocks; put it into the embedding")
        assert self._coupled

    @classmethod
    def of(cls, stack: Stack, join: Join = "mean") -> "Reversible":
        """Return a stack made reversible."""
        return cls(blocks=stack.blocks, order=stack.order, norm=stack.norm, position=stack.position, join=join)

    def build(self, dims: Dims) -> DepthModule:
        return _Reversible(self, dims)

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        d, inside = dims.d_model, self._coupled.cost(dims, shape)
        closing = self.norm.cost(d if self.join == "mean" else 2 * d)
        closing += linear(2 * d, d, False) if self.join == "concat" else Cost()
        return Cost(inside.params, inside.flops + d, 2 * d) + closing

    @property
    def widens(self) -> int:
        return 2 if self.join == "wide" else 1

    @property
    def _coupled(self) -> Stack:
        """What runs on the pair of streams."""
        blocks = tuple(block.replace(residual=Coupled(of=block.residual)) for block in self.blocks)
        return Stack(blocks=blocks, order=self.order)


class _Reversible(StackModule):
    def __init__(self, spec: Reversible, dims: Dims) -> None:
        super().__init__(spec._coupled, dims)
        d = dims.d_model
        self.join, self.how = Linear(2 * d, d, bias=False) if spec.join == "concat" else None, spec.join
        self.norm = spec.norm.build(d if spec.join == "mean" else 2 * d)

    def run(self, x_BLD: Tensor, ctx: Context, states: list[Any] | None, layers: list[Tensor] | None) -> Tensor:
        # listeners want tensors with gradients, and a state for decoding must not be written twice
        plain = ctx.taps is not None or not torch.is_grad_enabled() or (states is not None and not self.training)
        plain = plain or isinstance(ctx.encoder_output, LayerwiseOutput)
        pair = (x_BLD, x_BLD)
        walk = self._walk if plain or self._sharded else self._walk_lightly
        pair = walk(pair, ctx, states, layers)
        joined: Tensor = self.norm(_mean(pair) if self.how == "mean" else torch.cat(pair, -1))
        return joined if self.join is None else self.join(joined)

    @property
    def _sharded(self) -> bool:
        """Whether weights are together only while a block runs as a whole."""
        return any(hasattr(p, "full_tensor") for p in self.blocks.parameters())

    def _walk(self, pair: Pair, ctx: Context, states: list[Any] | None, layers: list[Tensor] | None = None) -> Pair:
        """Run under ordinary autograd."""
        blocks, again = list(self.blocks), self.recompute == "blocks" and self.training and torch.is_grad_enabled()
        for n, i in enumerate(self.order):
            state = None if states is None else states[n]
            with ctx.scope(str(n)):
                if again:
                    pair = checkpoint(blocks[i], pair, ctx.layer(n), state, use_reentrant=False)
                else:
                    pair = blocks[i](pair, ctx.layer(n), state)
                if ctx.hears("hidden"):
                    ctx.tap("hidden", _mean(pair))
            if layers is not None:
                layers.append(_mean(pair))
        return pair

    def _walk_lightly(
        self, pair: Pair, ctx: Context, states: list[Any] | None, layers: list[Tensor] | None = None
    ) -> Pair:
        """Run without keeping activations."""
        blocks: list[Any] = list(self.blocks)
        common = [p for p in self.shared.parameters() if p.requires_grad]
        halves = []
        for n, i in enumerate(self.order):
            for j, (part, residual) in enumerate(zip(blocks[i].parts, blocks[i].residuals, strict=True)):
                own = [p for p in (*part.parameters(), *residual.parameters()) if p.requires_grad]
                state = None if states is None else states[n][j]
                ends = layers is not None and j == len(blocks[i].parts) - 1
                halves.append(_Half(part, residual.of, [*own, *common], state, ends))
        weights = list({id(w): w for half in halves for w in half.weights}.values())
        run = _Run(halves, weights, ctx)
        memory_BMD = None if ctx.encoder_output is None else ctx.encoder_output.states_BMD
        a_BLD, b_BLD, *sides = _WalkLightly.apply(run, *pair, memory_BMD, *weights)
        if layers is not None:
            layers += sides[len(run.side_names) :]
            sides = sides[: len(run.side_names)]
        for name, value in zip(run.side_names, sides, strict=True):
            ctx.add_loss(name, value)
        return a_BLD, b_BLD


def _mean(pair: Pair) -> Tensor:
    return (pair[0] + pair[1]) * 0.5


@dataclasses.dataclass(eq=False)
class _Half:
    """One part and what surrounds it, the weights it may use, and how random numbers stood before it."""

    part: nn.Module
    residual: Any
    weights: list[Tensor]
    state: Any
    ends: bool = False  # a layer ends with it, whose hidden states are asked for
    seen: tuple[Tensor, Any] | None = None

    def remember_chance(self, *inputs: Tensor) -> None:
        self.seen = (torch.get_rng_state(), get_device_states(*inputs))

    def repeat_chance(self, device_type: str) -> None:
        assert self.seen is not None
        torch.set_rng_state(self.seen[0])
        set_device_states(*self.seen[1], device_type=device_type)


class _Run:
    """One pass: its parts in order, and what its context was."""

    def __init__(self, halves: list[_Half], weights: list[Tensor], ctx: Context) -> None:
        self.halves, self.weights, self.ctx = halves, weights, ctx
        self.side_names: list[str] = []

    def branch(self, half: _Half, x_BLD: Tensor, memory_BMD: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Run a part; what it loses on the side is returned, not added."""
        sides: dict[str, Tensor] = {}
        ctx = self.ctx.replace(side_losses=sides, taps=None)
        if memory_BMD is not None and ctx.encoder_output is not None:
            ctx = ctx.replace(encoder_output=EncoderOutput(memory_BMD, ctx.encoder_output.keep_BM))
        return half.residual.branch(x_BLD, half.part, ctx, half.state)[0], sides

    def note_format(self, x: Tensor) -> None:
        """Note the number format of the pass; weights cast without gradients must not be met again with them."""
        self.device_type, self.half = x.device.type, autocast_dtype(x.device)

    @property
    def same_format(self) -> contextlib.AbstractContextManager[Any]:
        """Compute in the number format of the pass."""
        if not torch.amp.is_autocast_available(self.device_type):
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, self.half, enabled=self.half is not None, cache_enabled=False)

    @property
    def chance_kept(self) -> contextlib.AbstractContextManager[None]:
        """Leave the caller's random state as it is."""
        assert self.halves[0].seen is not None
        devices = self.halves[0].seen[1][0]
        # without devices only the generator of the CPU is kept, whatever the type
        return torch.random.fork_rng(devices=devices, device_type=self.device_type if devices else "cuda")


class _WalkLightly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, a: Tensor, b: Tensor, memory: Tensor | None, *weights: Tensor) -> tuple[Any, ...]:
        totals: dict[str, Tensor] = {}
        layers: list[Tensor] = []
        run.note_format(b)
        with run.same_format:
            for half in run.halves:
                half.remember_chance(b)
                y, sides = run.branch(half, b, memory)
                a, b = b, a + y
                if half.ends:
                    layers.append(_mean((a, b)))
                for name, value in sides.items():
                    totals[name] = totals[name] + value if name in totals else value
        run.side_names = list(totals)
        ctx.run = run
        ctx.save_for_backward(a, b, memory)
        return a, b, *totals.values(), *layers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dp: Tensor, dq: Tensor, *d_sides: Tensor) -> tuple[Any, ...]:
        run: _Run = ctx.run
        p, q, memory = ctx.saved_tensors
        found: dict[int, Tensor] = {}
        if memory is not None:
            memory = memory.detach().requires_grad_(ctx.needs_input_grad[3])
        d_named = dict(zip(run.side_names, d_sides, strict=False))
        d_layers = list(d_sides[len(run.side_names) :])
        with run.chance_kept, torch.enable_grad(), run.same_format:
            for half in reversed(run.halves):
                half.repeat_chance(run.device_type)
                if half.ends:
                    # the hidden states of a layer are the mean of both streams after it
                    d_half = d_layers.pop() * 0.5
                    dp, dq = dp + d_half, dq + d_half
                x = p.detach().requires_grad_()
                y, sides = run.branch(half, x, memory)
                inputs = [x, *half.weights] + ([memory] if memory is not None and memory.requires_grad else [])
                outputs, d_outputs = [y], [dq.to(y.dtype)]
                for name, value in sides.items():
                    if value.requires_grad:
                        outputs.append(value)
                        d_outputs.append(d_named[name])
                grads = torch.autograd.grad(outputs, inputs, d_outputs, allow_unused=True)
                for tensor, grad in zip(inputs[1:], grads[1:], strict=True):
                    if grad is not None:
                        seen = found.get(id(tensor))
                        found[id(tensor)] = grad if seen is None else seen + grad
                with torch.no_grad():
                    p, q = q - y, p
                    dp, dq = dq, dp if grads[0] is None else dp + grads[0]
        d_memory = None if memory is None else found.get(id(memory))
        return None, dp, dq, d_memory, *(found.get(id(w)) for w in run.weights)
