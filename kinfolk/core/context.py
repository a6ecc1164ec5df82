"""What a layer may know besides its input: one small frozen object, handed down unchanged.

A module records what it sees with `ctx.tap("weights", w)`, which costs nothing when nobody listens.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, MutableMapping

import torch
from torch import Tensor

from kinfolk.core.device import arange, host


@dataclasses.dataclass(frozen=True, eq=False)
class Padding:
    """Which tokens are real. `right` is true if the others all stand at the end, where a causal pattern hides them."""

    keep_BL: Tensor
    right: bool

    @classmethod
    def of(cls, keep_BL: Tensor) -> "Padding":
        """Look whether a mask pads on the right only; a graph cannot look, and is promised that it does."""
        if torch.compiler.is_exporting():
            return cls(keep_BL, right=True)
        keep = host(keep_BL)
        return cls(keep_BL, right=not bool((keep[:, 1:] & ~keep[:, :-1]).any()))


@dataclasses.dataclass(frozen=True, eq=False)
class Memory:
    """What a decoder looks at: the encoder's states and which of them are real."""

    states_BMD: Tensor
    keep_BM: Tensor | None = None
    layers_NBMD: Tensor | None = None  # what each layer of the decoder looks at, where they differ
    ends_NBS: Tensor | None = None  # what recurrent layers from this one on begin with, where an encoder says it

    def select(self, rows_B: Tensor) -> "Memory":
        """Return one whose example i is example `rows[i]`."""
        keep_BM = None if self.keep_BM is None else self.keep_BM[rows_B]
        by_layer = (None if x is None else x[:, rows_B] for x in (self.layers_NBMD, self.ends_NBS))
        return Memory(self.states_BMD[rows_B], keep_BM, *by_layer)

    def join(self, other: "Memory") -> "Memory":
        """Return one with the examples of another behind its own; the shorter states are padded."""
        size = max(self.states_BMD.shape[1], other.states_BMD.shape[1])
        both = (self, other)
        states_BMD = torch.cat([_longer(m.states_BMD, 1, size) for m in both])
        alike = all(m.keep_BM is None and m.states_BMD.shape[1] == size for m in both)
        keep_BM = None if alike else torch.cat([_longer(m.kept, 1, size) for m in both])
        layers = [_longer(m.layers_NBMD, 2, size) for m in both if m.layers_NBMD is not None]
        ends = [m.ends_NBS for m in both if m.ends_NBS is not None]
        return Memory(
            states_BMD, keep_BM, torch.cat(layers, 1) if layers else None, torch.cat(ends, 1) if ends else None
        )

    @property
    def kept(self) -> Tensor:
        """Which states are real, as a mask: [B, M]."""
        return torch.ones_like(self.states_BMD[..., 0], dtype=torch.bool) if self.keep_BM is None else self.keep_BM

    def layer(self, n: int) -> "Memory":
        """Return that of the n-th run of a block."""
        states_BMD = self.states_BMD if self.layers_NBMD is None else self.layers_NBMD[n]
        return Memory(states_BMD, self.keep_BM, None, None if self.ends_NBS is None else self.ends_NBS[n:])


@dataclasses.dataclass(frozen=True, eq=False)
class Mentions:
    """What the tokens of each example may name: S mentions with C candidates each."""

    spans_BS2: Tensor  # the first and the last token of a mention; below 0: there is none
    entities_BSC: Tensor  # the numbers of what it may mean; below 0: nothing more
    priors_BSC: Tensor  # how often it means that, of all times
    links_BS: Tensor | None = None  # which candidate is meant, IGNORE where nobody says

    @property
    def real(self) -> Tensor:
        """Which mentions there are: those that may mean anything."""
        return (self.spans_BS2[..., 0] >= 0) & (self.entities_BSC >= 0).any(-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Tree:
    """How the tokens of each example belong together.

    By a parse: how deep every token stands, and the relation that replaces the distance j - i. By segments: which of
    the two sentences of a pair a token is part of. By mentions: which of them name something.
    """

    depth_BL: Tensor | None = None
    relation_BLM: Tensor | None = None
    segments_BL: Tensor | None = None
    mentions: Mentions | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Visible:
    """Rules of each example about who sees whom, besides patterns: pairs, or the last key that a token may see."""

    pairs_BLM: Tensor | None = None  # M may be fewer positions, the first
    until_BL: Tensor | None = None  # patterns are then read in both directions


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


def _longer(x: Tensor, axis: int, size: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0) * (x.ndim - 1 - axis) + (0, size - x.shape[axis]))


_NOWHERE = contextlib.nullcontext()


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """Positions, padding, visibility, the encoder's memory, listeners and side losses of one pass."""

    start: int = 0  # position of the first token, where all examples agree; of the furthest, where they do not
    pos_BL: Tensor | None = None  # positions of every token, where they do not
    padding: Padding | None = None
    group_BL: Tensor | None = None  # packed documents: a token sees its own only
    visible: "Visible | None" = None  # any further rule about who sees whom
    tree: Tree | None = None  # where tokens stand in a parse or a pair
    memory: Memory | None = None
    taps: Taps | None = None
    side_losses: MutableMapping[str, Tensor] | None = None  # `SideLosses` wherever hooks may copy arguments
    unit: int = 1  # positions of the text from one token to the next, where a token stands for several

    def replace(self, **changes: object) -> "Context":
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    @property
    def visible_pairs(self) -> Tensor | None:
        """Which pairs may see one another, where an example says so."""
        return None if self.visible is None else self.visible.pairs_BLM

    @property
    def visible_until(self) -> Tensor | None:
        """The last key that each token may see, where a prefix is read in both directions."""
        return None if self.visible is None else self.visible.until_BL

    def layer(self, n: int) -> "Context":
        """Return what the n-th run of a block may know: its own memory, where layers look at different ones."""
        if self.memory is None or (self.memory.layers_NBMD is None and self.memory.ends_NBS is None):
            return self
        return self.replace(memory=self.memory.layer(n))

    def tap(self, name: str, value: Tensor) -> None:
        """Report a tensor to whoever listens."""
        if self.taps is not None:
            self.taps.record(name, value)

    def hears(self, name: str) -> bool:
        """Tell whether reporting `name` is of any use, for what costs something to make."""
        return self.taps is not None and self.taps.hears(name)

    def asked(self, name: str) -> bool:
        """Tell whether somebody wants this very name, for what is of no use to those who listen to everything."""
        return self.taps is not None and self.taps.names is not None and name in self.taps.names

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
