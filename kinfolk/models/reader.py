"""Readers of hidden states: sums over the layers of a stack (layer mix, transparent attention, ACT halting).

A reader sees the hidden states before and after every run of a block. A stack that keeps no activations runs it once
more in its backward pass, on states that it has found again.
"""

from typing import Any

from torch import Tensor

from kinfolk.core.context import Context


class LayerReader:
    """Base of readers; it reads nothing, and the output of a stack is the last hidden state.

    `decide` maps a carry of small tensors, [B, L], from the states before a run; `add` adds what the states after it
    contribute to a total. Both depend on their arguments and on `weights` alone, so that they can be run again.
    """

    @property
    def watches(self) -> bool:
        """Whether it reads hidden states between runs; `decide` and `add` of the plain one do nothing."""
        return type(self) is not LayerReader

    @property
    def weights(self) -> list[Tensor]:
        """The tensors with gradients that it uses."""
        return []

    @property
    def streaming(self) -> "LayerReader | None":
        """The reader whose total only grows, so that no state has to be kept; None: it needs all states at once."""
        return self

    def begin(self, x_BLD: Tensor, ctx: Context) -> Any:
        """Return the carry before the first run, a named tuple."""
        return ()

    def start(self, x_BLD: Tensor) -> Any:
        """Return the total before the first run."""
        return None

    def decide(self, n: int, before_BLD: Tensor, carry: Any) -> Any:
        """Return the carry of run n, from the states before it."""
        return carry

    def done(self, carry: Any) -> bool:
        """Tell whether no further run is needed."""
        return False

    def active(self, carry: Any) -> Tensor | None:
        """Return the positions, [B, L], that run n changes; None: all."""
        return None

    def step(self, stack: Any, n: int, x_BLD: Tensor, carry: Any, ctx: Context, states: list[Any] | None) -> Tensor:
        """Return the states after run n."""
        after_BLD: Tensor = stack.step(n, x_BLD, ctx, states)
        return after_BLD

    def add(self, n: int, after_BLD: Tensor, carry: Any, total: Any) -> Any:
        """Return the total with the states after run n."""
        return total

    def result(self, last: Any, carry: Any, total: Any, ctx: Context) -> Any:
        """Return the output, before the norm that closes the stack."""
        return last


class AllLayers(LayerReader):
    """Reader of all hidden states: before the first run and after each. A skipped run leaves them as they were."""

    def __init__(self, n: int) -> None:
        self.n = n

    @property
    def streaming(self) -> LayerReader | None:
        return None

    def start(self, x_BLD: Tensor) -> list[Tensor]:
        return [x_BLD]

    def add(self, n: int, after_BLD: Tensor, carry: Any, total: list[Tensor]) -> list[Tensor]:
        return [*total, after_BLD]

    def every(self, total: list[Tensor]) -> list[Tensor]:
        """Return the states of all layers, those that were not reached included (halting)."""
        return total + total[-1:] * (self.n + 1 - len(total))


class LayerReading:
    """A reader in one pass, with its carry and total."""

    def __init__(self, reader: LayerReader) -> None:
        self.reader = reader
        self.carry: Any = ()
        self.total: Any = None

    def begin(self, x_BLD: Tensor, ctx: Context) -> None:
        """Start before the first run."""
        self.carry, self.total = self.reader.begin(x_BLD, ctx), self.reader.start(x_BLD)

    def decide(self, n: int, before_BLD: Tensor) -> None:
        """Read the states before run n."""
        self.carry = self.reader.decide(n, before_BLD, self.carry)

    def add(self, n: int, after_BLD: Tensor) -> None:
        """Read the states after run n."""
        self.total = self.reader.add(n, after_BLD, self.carry, self.total)

    def result(self, last: Any, ctx: Context) -> Any:
        """Return the output."""
        return self.reader.result(last, self.carry, self.total, ctx)
