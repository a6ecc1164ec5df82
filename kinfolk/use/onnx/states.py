"""A decoder's state as tensors by name, so that a graph can take it in and give it out.

The states that layers keep (`kinfolk.layers`) are objects that change in place, some with room set aside for positions
to come. A graph has neither, so keys and values grow by concatenation here, and everything else is replaced.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.feed_forwards.transition import TransitionInputs
from kinfolk.layers.mixers.attentional_rnn import Begun
from kinfolk.layers.mixers.compressed_attention import Windows
from kinfolk.layers.mixers.convolution import RecentInputs
from kinfolk.layers.mixers.evolved import States
from kinfolk.layers.mixers.linear_attention import Remembered
from kinfolk.layers.mixers.rnn import Carried
from kinfolk.layers.states.kv_cache import MemorySlots, Ring, Rolling, Slots
from kinfolk.ops.attention.scores import View

BATCH, PAST, MEMORY = "batch", "past", "memory"
"""Names of the axes that differ from call to call; `past` is as long as what was decoded, `memory` as the source."""


class Places:
    """Positions of keys, the same for all layers: [B, P + L], negative where there is none; or the lengths of rows."""

    def __init__(self) -> None:
        self.k_pos_BM: Tensor | None = None
        self.reach: Any = None  # of the fused operator


class Growing:
    """KV cache that concatenates: for a graph, which cannot write in place."""

    def __init__(self, places: Places, like_BGMK: Tensor) -> None:
        self.places, self.like_BGMK = places, like_BGMK
        self.k_BGMK: Tensor | None = None
        self.v_BGMK: Tensor | None = None

    def extend(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context) -> tuple[Tensor, Tensor, View]:
        """Append new keys and values and return all, with the positions of queries and keys."""
        k = k_BGLK if self.k_BGMK is None else torch.cat([self.k_BGMK, k_BGLK], 2)
        v = v_BGLK if self.v_BGMK is None else torch.cat([self.v_BGMK, v_BGLK], 2)
        self.k_BGMK, self.v_BGMK = k, v
        return k, v, View(q_pos_BL=ctx.pos_BL, k_pos_BM=self.places.k_pos_BM)


@dataclasses.dataclass(frozen=True, eq=False)
class Slot:
    """One tensor of a state: its name, its axes ("" for one of fixed size), and how it is read and replaced.

    begins: where there is an encoder, it says what this is at first; otherwise it begins as layers make it.
    like: what keys and values look like, of which there are none at first.
    """

    name: str
    axes: tuple[str, ...]
    get: Callable[[], Tensor | None]
    put: Callable[[Tensor], None]
    begins: bool = False
    like: Tensor | None = None

    @property
    def fixed(self) -> bool:
        """True for what decoding reads and never changes."""
        return MEMORY in self.axes

    def value(self) -> Tensor:
        """Return the tensor, which is there."""
        found = self.get()
        assert found is not None, f"{self.name} is empty"
        return found


_AXES: dict[type, dict[str, tuple[str, ...]]] = {
    Growing: {"k_BGMK": (BATCH, "", PAST, ""), "v_BGMK": (BATCH, "", PAST, "")},
    MemorySlots: {"k_BGMK": (BATCH, "", MEMORY, ""), "v_BGMK": (BATCH, "", MEMORY, "")},
    RecentInputs: {"x_BmD": (BATCH, "", "")},
    Windows: {"slots_BGMK": (BATCH, "", "", ""), "tail_BGtK": (BATCH, "", "", "")},
    Begun: {"keys_BMD": (BATCH, MEMORY, "")},
}
_SUMS = {"sums_BHRK": (BATCH, "", "", ""), "peak_BH": (BATCH, "")}


class Layers:
    """The states of all layers of a decoder, made for a graph."""

    def __init__(self, decoder: Any, batch_size: int, max_len: int) -> None:
        self.decoder, self.places = decoder, Places()
        self.layers = [[ready(part, self.places) for part in layer] for layer in decoder.new_state(batch_size, max_len)]
        for part, state in self._parts():
            if isinstance(state, Begun) and hasattr(part, "begin"):
                # any memory: how many states there are and how wide does not depend on it
                x_B1D = torch.zeros(batch_size, 1, part.d_model)
                state.values = part.begin(x_B1D, EncoderOutput(x_B1D))

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        """Return every part of every run of a block beside its state."""
        for n, i in self.decoder.runs():
            yield from zip(self.decoder.blocks[i].parts, self.layers[n], strict=True)

    @property
    def look(self) -> bool:
        """Tell whether a part looks at the encoder's states themselves."""
        return any(isinstance(state, Begun) for layer in self.layers for state in layer)

    def slots(self) -> list[Slot]:
        """Return all tensors, by layer and part."""
        found: list[Slot] = []
        for n, i in self.decoder.runs():
            for j, (part, state) in enumerate(zip(self.decoder.blocks[i].parts, self.layers[n], strict=True)):
                try:
                    found += slots_of(f"{n}.{j}", state)
                except SpecError as error:
                    # a fused operator takes the place of an attention, and has no spec
                    kind = getattr(getattr(part, "spec", None), "kind", "attention")
                    where = f"decoder.blocks.{i}.parts.{j} ({kind})"
                    raise SpecError(f"{where} cannot be exported: {error}") from None
        return found


def ready(state: Any, places: Places) -> Any:
    """Let keys and values grow instead of being written where room was set aside."""
    if type(state) in (Slots, Ring):
        return Growing(places, state.k_BGMK)
    if isinstance(state, Rolling):
        state.ring = Growing(places, state.ring.k_BGMK)  # type: ignore[assignment]
    elif isinstance(state, States):
        state.each = [ready(one, places) for one in state.each]
    return state


def slots_of(path: str, state: Any) -> Iterator[Slot]:
    """Return the tensors of one part's state."""
    if state is None:
        return
    if isinstance(state, States):
        for i, one in enumerate(state.each):
            yield from slots_of(f"{path}.{i}", one)
    elif isinstance(state, TransitionInputs):
        yield from slots_of(f"{path}.first", state.first)
        yield from slots_of(f"{path}.second", state.second)
    elif isinstance(state, Rolling):
        yield from slots_of(path, state.ring)
    elif isinstance(state, Remembered):
        for name, axes in _SUMS.items():
            yield Slot(f"{path}.{_plain(name)}", axes, *_replaced(state, name))
    else:
        yield from _members(path, state)


def _members(path: str, state: Any) -> Iterator[Slot]:
    if type(state) not in _AXES and not isinstance(state, Carried):
        raise SpecError(f"a state of the kind {type(state).__name__} has no form that a graph can take in")
    for name, axes in _AXES.get(type(state), {}).items():
        yield Slot(
            f"{path}.{_plain(name)}", axes, *_attribute(state, name), MEMORY in axes, getattr(state, "like_BGMK", None)
        )
    for i, value in enumerate(getattr(state, "values", ())):
        axes = ("", BATCH, "") if isinstance(state, Carried) else (BATCH, *[""] * (value.ndim - 1))
        yield Slot(f"{path}.{i}", axes, *_item(state, i), begins=True)


def _plain(name: str) -> str:
    return name.rpartition("_")[0]


def _attribute(state: Any, name: str) -> tuple[Callable[[], Tensor | None], Callable[[Tensor], None]]:
    return lambda: getattr(state, name), lambda value: setattr(state, name, value)


def _item(state: Any, i: int) -> tuple[Callable[[], Tensor | None], Callable[[Tensor], None]]:
    def put(value: Tensor) -> None:
        state.values = (*state.values[:i], value, *state.values[i + 1 :])

    return lambda: state.values[i], put


def _replaced(state: Remembered, name: str) -> tuple[Callable[[], Tensor | None], Callable[[Tensor], None]]:
    def put(value: Tensor) -> None:
        state.sums = dataclasses.replace(state.sums, **{name: value})

    return lambda: getattr(state.sums, name), put


def looks(state: Any) -> bool:
    """Tell whether a state keeps something of an encoder's."""
    if isinstance(state, States):
        return any(looks(one) for one in state.each)
    return isinstance(state, MemorySlots)
