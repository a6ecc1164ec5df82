"""Memory in pages of 2 MB, for weights that are read whole again and again.

A token of a model that no cache holds crosses every page of its weights. In ordinary pages of 4 KB each costs a search
in the page tables, on a virtual machine in two of them, and pages lie scattered: GPT-2 base reads its matrices a tenth
slower. The system gives large pages to who asks for an area of memory (`madvise`); nothing else of the process changes.
"""

import mmap

import torch
from torch import Tensor

PAGE = 2 << 20
_ALIGNED = 4096


def room(n_bytes: int) -> int:
    """Return the bytes of a reserve that a tensor of `n_bytes` takes."""
    return -(-n_bytes // _ALIGNED) * _ALIGNED


class HugePages:
    """A reserve of at most `n_bytes`, cut into tensors; what is never written takes no memory.

    It goes when the last of its tensors goes. Where the system has no such pages (macOS, Windows), or the reserve is
    used up, a tensor is an ordinary one.
    """

    def __init__(self, n_bytes: int) -> None:
        self._area: Tensor | None = None
        self._at = self._end = 0
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            return
        try:
            area = mmap.mmap(-1, n_bytes + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            area.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            # a kernel without them, or a limit on addresses
            return
        self._area = torch.frombuffer(area, dtype=torch.uint8)
        self._at = -self._area.data_ptr() % PAGE
        self._end = self._at + n_bytes

    def copy(self, x: Tensor) -> Tensor:
        """Return a contiguous copy of `x`. Cost: one pass."""
        if self._area is None or self._at + x.nbytes > self._end or x.numel() == 0:
            return x.clone(memory_format=torch.contiguous_format)
        out = self._area[self._at : self._at + x.nbytes].view(x.dtype).view(x.shape)
        self._at += room(x.nbytes)
        return out.copy_(x)
