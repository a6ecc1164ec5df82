"""The context of a pass: what a layer reads besides its input, as one small frozen object.

A module records a tensor with `ctx.tap("weights", w)`, which costs nothing without a listener.
"""

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.annotations import Annotated, Annotation, Visible
from kinfolk.core.device import arange, host
from kinfolk.core.encoder_output import EncoderOutput


@dataclasses.dataclass(frozen=True, eq=False)
class Padding:
    """Which tokens are real. `right` is true if all others are at the end, where a causal pattern hides them."""

    keep_BL: Tensor
    right: bool

    @classmethod
    def of(cls, keep_BL: Tensor) -> "Padding":
        """Look whether a mask pads on the right only; a graph cannot look, and is promised that it does."""
        if torch.compiler.is_exporting():
            return cls(keep_BL, right=True)
        keep = host(keep_BL)
        return cls(keep_BL, right=not bool((keep[:, 1:] & ~keep[:, :-1]).any()))


class Taps:
    """A listener: collects tensors by the path of the module that reported them."""

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.names = names
        self.found: dict[str, Tensor] = {}
        self._path: list[str] = []

    def record(self, name: str, value: Tensor) -> None:
        """Keep a tensor if its name is wanted."""
        if self.hears(name):
            self.found[".".join([*self._path, name])] = value

    def hears(self, name: str) -> bool:
        """Tell whether anybody wants this name."""
        return self.names is None or name in self.names

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Put a name in front of everything recorded inside."""
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()


class SideLosses(collections.UserDict[str, Tensor]):
    """Side losses of one pass, by name.

    Neither a dict nor a dataclass: hooks of FSDP2 rebuild those around every tensor that has a gradient, and a layer
    would add its loss to the copy.
    """


_NOWHERE = contextlib.nullcontext()


@dataclasses.dataclass(frozen=True, eq=False)
class Context(Annotated):
    """Positions and padding, annotations, the encoder's output, listeners and side losses of one pass."""

    start: int = 0  # position of the first token, where all examples agree; of the furthest, where they do not
    pos_BL: Tensor | None = None  # positions of every token, where they do not
    unit: int = 1  # positions of the text from one token to the next, where a token is pooled from several
    padding: Padding | None = None
    group_BL: Tensor | None = None  # packed documents: a token attends to its own only
    annotations: tuple[Annotation, ...] = ()
    encoder_output: EncoderOutput | None = None
    taps: Taps | None = None
    side_losses: MutableMapping[str, Tensor] | None = None  # `SideLosses` wherever hooks may copy arguments

    def replace(self, **changes: object) -> "Context":
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    @property
    def visible_pairs(self) -> Tensor | None:
        """The attention mask of each example; None if patterns alone decide."""
        visible = self.annotation(Visible)
        return None if visible is None else visible.pairs_BLM

    @property
    def visible_until(self) -> Tensor | None:
        """The last key that each token may attend to, where a prefix is read in both directions."""
        # written out: asked for by every layer at every step of decoding
        visible = self.annotation(Visible) if self.annotations else None
        return None if visible is None else visible.until_BL

    def layer(self, n: int) -> "Context":
        """Return the context of the n-th run of a block: layers may read different encoder outputs."""
        output = self.encoder_output
        if output is None or (inner := output.layer(n)) is output:
            return self
        return self.replace(encoder_output=inner)

    def tap(self, name: str, value: Tensor) -> None:
        """Report a tensor to listeners."""
        if self.taps is not None:
            self.taps.record(name, value)

    def hears(self, name: str) -> bool:
        """Tell whether reporting `name` is of any use, for what costs something to make.

        It may decide what is computed for a listener, never how the output is computed.
        """
        return self.taps is not None and self.taps.hears(name)

    def listener(self, name: str) -> Callable[[Tensor], None] | None:
        """Return the function that reports `name`; None without a listener."""
        return functools.partial(self.tap, name) if self.hears(name) else None

    def asked(self, name: str) -> bool:
        """Tell whether somebody wants this very name, for what is of no use to those who listen to everything."""
        return self.taps is not None and self.taps.names is not None and name in self.taps.names

    def within(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function whose reports get a name in front."""
        if self.taps is None:
            return function(*arguments)
        with self.taps.scope(name):
            return function(*arguments)

    def scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Name the part of the model that reports inside."""
        return _NOWHERE if self.taps is None else self.taps.scope(name)

    def add_loss(self, name: str, value: Tensor) -> None:
        """Add a weighted side loss; several parts may add to one name."""
        if self.side_losses is not None:
            self.side_losses[name] = self.side_losses[name] + value if name in self.side_losses else value

    def positions(self, n: int, device: torch.device) -> Tensor:
        """Return the positions of `n` tokens: [L], or [B, L] where examples differ."""
        return arange(self.start, self.start + n, device) if self.pos_BL is None else self.pos_BL
