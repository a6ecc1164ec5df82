"""Memory of large gradients of experts, kept from one training step to the next.

A gradient is freed when it was used (`zero_grad`), and allocated anew in the next step. A block of more than 32 MB
glibc takes from the system every time, so each page of it faults and is cleared before it is written: for 64 experts a
quarter of the time of a step. Here such a block stays with its weight. It is given out again only when
nothing refers to it, so a gradient that somebody holds is never written to, and it is freed with the weight.
"""

import weakref
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

LARGE = 1 << 25
"""Bytes up to which glibc keeps what was freed (the largest value that M_MMAP_THRESHOLD takes by itself)."""


class _Block(NamedTuple):
    """Bytes, and the view of them that was given out last; the view ends with the last tensor that uses it."""

    held: Tensor
    lent: "weakref.ref[memoryview]"


_blocks = WeakTensorKeyDictionary()


def empty_gradient(weight: Tensor) -> Tensor:
    """Return a contiguous tensor for the gradient of a weight, its values undefined, in its block where that is free.

    A view of a parameter shares the parameter's block. Weights that are small or on another device get an ordinary
    tensor, and so does a second gradient while the first is in use: gradient accumulation, weights that are used twice.
    """
    n_bytes, owner = weight.numel() * weight.element_size(), weight if weight._base is None else weight._base
    block = _blocks.get(owner)
    busy = block is not None and (block.lent() is not None or len(block.held) != n_bytes)
    # a tensor of tracing is of another class and has no memory
    if n_bytes <= LARGE or not weight.is_cpu or type(weight) not in (Tensor, torch.nn.Parameter) or busy:
        return torch.empty_like(weight, memory_format=torch.contiguous_format)
    held = torch.empty(n_bytes, dtype=torch.uint8) if block is None else block.held
    view: memoryview = held.numpy().data
    _blocks[owner] = _Block(held, weakref.ref(view))
    return torch.frombuffer(view, dtype=weight.dtype).view(weight.shape)
