"""Encoder output: what cross-attention and recurrent decoders read of a source."""

import dataclasses
from typing import Self

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderOutput:
    """The encoder's states, [B, M, D], and their padding mask.

    A bridge that gives a decoder more than that returns a subclass: further tensors by layer, whose second axis is that
    of examples.
    """

    states_BMD: Tensor
    keep_BM: Tensor | None = None

    @property
    def kept(self) -> Tensor:
        """Which states are of real tokens, as a mask: [B, M]."""
        return torch.ones_like(self.states_BMD[..., 0], dtype=torch.bool) if self.keep_BM is None else self.keep_BM

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that have gradients, by field."""
        named = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return {name: x for name, x in named if x is not None and name != "keep_BM"}

    def replace(self, **tensors: Tensor) -> Self:
        """Return a copy with other tensors."""
        return dataclasses.replace(self, **tensors)

    def select(self, rows_B: Tensor) -> Self:
        """Return one whose example i is example `rows[i]`."""
        by_layer = {name: x[:, rows_B] for name, x in self._by_layer.items()}
        keep_BM = None if self.keep_BM is None else self.keep_BM[rows_B]
        return dataclasses.replace(self, states_BMD=self.states_BMD[rows_B], keep_BM=keep_BM, **by_layer)

    def join(self, other: Self) -> Self:
        """Return one with the examples of another behind its own; the shorter states are padded."""
        size = max(self.states_BMD.shape[1], other.states_BMD.shape[1])
        both = (self, other)
        states_BMD = torch.cat([_padded(x.states_BMD, 1, size) for x in both])
        alike = all(x.keep_BM is None and x.states_BMD.shape[1] == size for x in both)
        keep_BM = None if alike else torch.cat([_padded(x.kept, 1, size) for x in both])
        return dataclasses.replace(self, states_BMD=states_BMD, keep_BM=keep_BM, **self._joined(other, size))

    def layer(self, n: int) -> "EncoderOutput":
        """Return what the n-th run of a block of the decoder reads."""
        return self

    def _joined(self, other: Self, size: int) -> dict[str, Tensor]:
        theirs = other._by_layer
        return {name: torch.cat([x, theirs[name]], 1) for name, x in self._by_layer.items()}

    @property
    def _by_layer(self) -> dict[str, Tensor]:
        return {name: x for name, x in self.tensors.items() if name != "states_BMD"}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LayerwiseOutput(EncoderOutput):
    """States of its own for each layer of the decoder (transparent attention, Bapna et al. 2018)."""

    layers_NBMD: Tensor

    def layer(self, n: int) -> EncoderOutput:
        return EncoderOutput(self.layers_NBMD[n], self.keep_BM)

    def _joined(self, other: Self, size: int) -> dict[str, Tensor]:
        return {"layers_NBMD": torch.cat([_padded(x.layers_NBMD, 2, size) for x in (self, other)], 1)}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RecurrentOutput(EncoderOutput):
    """The states, and the last recurrent state of every layer, which the decoder's start from (Sutskever et al. 2014).

    The first of `ends_NBS` is that of the layer which reads it.
    """

    ends_NBS: Tensor

    def layer(self, n: int) -> EncoderOutput:
        return RecurrentOutput(self.states_BMD, self.keep_BM, ends_NBS=self.ends_NBS[n:])


def _padded(x: Tensor, axis: int, size: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0) * (x.ndim - 1 - axis) + (0, size - x.shape[axis]))
