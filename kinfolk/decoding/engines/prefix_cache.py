"""Prefix cache: the KV cache of prompts read before, so that a prompt that starts like one of them reads only its rest.

Entries are copies, dropped in the order of their last use when they exceed a number of bytes. A prompt's rest is read
behind the copied keys and values as a long prompt's next chunk is, so logits agree within float rounding. States that
cannot go back to an earlier position (ring buffers, recurrent states) are not kept.
"""

import collections
import dataclasses
import itertools

from torch import Tensor

from kinfolk.layers.states.rows import StateRows
from kinfolk.models.model import State

LEAST = 16
"""Tokens that a prefix needs to be worth a copy."""


@dataclasses.dataclass(frozen=True, eq=False)
class CachedPrompt:
    """Keys and values of the tokens of one prompt, by part and field."""

    tokens: tuple[int, ...]
    values: dict[tuple[str, str], Tensor]

    @property
    def n_bytes(self) -> int:
        """What it takes."""
        return sum(x.numel() * x.element_size() for x in self.values.values())


class PrefixCache:
    """Prefixes of up to `limit` bytes. `hits`, `reused`: prompts that found one, and tokens they did not read again."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held, self.hits, self.reused = limit, 0, 0, 0
        self._entries: collections.OrderedDict[tuple[int, ...], CachedPrompt] = collections.OrderedDict()

    def restore(self, prompt: list[int], state: State) -> int:
        """Copy the longest prefix of a prompt into an empty state; return its length, less than the prompt's."""
        best, n = None, 0
        for entry in self._entries.values():
            if (same := min(shared(entry.tokens, prompt), len(prompt) - 1)) > n:
                best, n = entry, same
        if best is None or n < LEAST or not _can_go_back(state):
            return 0
        for (name, field), kept in best.values.items():
            part = state.parts[name]
            axis = part.held[field].room
            getattr(part, field).narrow(axis, 0, n).copy_(kept.narrow(axis, 0, n))
        state.next_pos = n
        self._entries.move_to_end(best.tokens)
        self.hits, self.reused = self.hits + 1, self.reused + n
        return n

    def store(self, prompt: list[int], state: State) -> None:
        """Keep a copy of the state after a prompt, and drop what it continues and what was not used for longest."""
        tokens = tuple(prompt)
        if len(tokens) <= LEAST or tokens in self._entries or not _can_go_back(state):
            return
        values = {
            (name, field): getattr(part, field).narrow(axes.room, 0, len(tokens)).clone()
            for name, part in state.parts.items()
            for field, axes in part.held.items()
        }
        new = CachedPrompt(tokens, values)
        if new.n_bytes > self.limit:
            return
        for old in [key for key in self._entries if key == tokens[: len(key)]]:
            self._drop(old)
        self._entries[tokens], self.held = new, self.held + new.n_bytes
        while self.held > self.limit:
            self._drop(next(iter(self._entries)))

    def __len__(self) -> int:
        return len(self._entries)

    def _drop(self, tokens: tuple[int, ...]) -> None:
        self.held -= self._entries.pop(tokens).n_bytes


def shared(a: tuple[int, ...], b: list[int]) -> int:
    """Return the length of the longest common prefix."""
    pairs = enumerate(zip(a, b, strict=False))
    return next(itertools.chain((i for i, (x, y) in pairs if x != y), [min(len(a), len(b))]))


def _can_go_back(state: State) -> bool:
    """Tell whether every part is keys and values by position."""
    return all(
        isinstance(part, StateRows) and part.rewinds and all(axes.room is not None for axes in part.held.values())
        for part in state.parts.values()
    )
