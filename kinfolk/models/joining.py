"""Continuous batching: decoding states whose rows join and leave between steps.

Every part of a state holds its examples in rows (`kinfolk.layers.states.rows`), and examples may be at positions of
their own, as after prompts of unequal lengths. So a state that has read a prompt joins one that is many tokens further,
and each row goes on exactly as it would alone.
"""

import torch
from torch import Tensor

from kinfolk.core.errors import ShapeError
from kinfolk.layers.mixers.evolved import States
from kinfolk.layers.states.kv_cache import Ring, Rolling
from kinfolk.models.model import State, Transformer


def join(state: State, n: int, other: State, n_other: int) -> None:
    """Append the `n_other` examples of a state that has read something to the `n` of another of the same model."""
    own, others = state.parts, other.parts
    if own.keys() != others.keys():
        raise ShapeError("states of different models cannot be joined")
    for name, part in own.items():
        part.join(others[name])
    _stand(state, torch.cat([positions(state, n), positions(other, n_other)]))
    if state.encoder_output is not None and other.encoder_output is not None:
        state.encoder_output = state.encoder_output.join(other.encoder_output)


def leave(state: State, staying_B: Tensor) -> None:
    """Keep the examples of these numbers, in this order; the work of a step follows the furthest of them."""
    state.select(staying_B)
    if state.next_pos_B is not None and len(staying_B):
        _stand(state, state.next_pos_B)


def _stand(state: State, pos_B: Tensor) -> None:
    """Set the next position of each example; a single number where all agree."""
    low, high = torch.stack(torch.aminmax(pos_B)).tolist()
    state.next_pos, state.next_pos_B = high, None if low == high else pos_B


def positions(state: State, n: int) -> Tensor:
    """Return the next position of each of `n` examples."""
    if state.next_pos_B is not None:
        return state.next_pos_B
    return torch.full((n,), state.next_pos)


def least_room(model: Transformer, max_len: int) -> int:
    """Return how many positions a state must be made for to be of the same kind as one made for `max_len`.

    Attention with a bounded span keeps a ring of it, or everything if a text is not longer than that. Rows of
    both kinds cannot be batched together, so those of short texts are given the ring as well.
    """
    parts = model.new_state(1, max_len).parts.values()
    return min(max_len, 1 + max((_ring(part) for part in parts), default=0))


def _ring(part: object) -> int:
    """Return the size of the largest ring in a part; 0 if there is none."""
    if isinstance(part, States):
        return max((_ring(one) for one in part.each), default=0)
    ring = part.ring if isinstance(part, Rolling) else part
    return ring.k_BGMK.shape[2] if isinstance(ring, Ring) else 0
