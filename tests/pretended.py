"""A pretended accelerator: tensors that say they are elsewhere, hold real numbers on the host, and count every wait.

Each operator runs on the numbers inside. Noted are: synchronisations (the host reads a number, or a shape depends on
one, or memory is copied while the host waits), tensors of both places in one operator, and float64, which not every
accelerator has.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

import kinfolk
from kinfolk.core import device as devices

DEVICE = torch.device("meta")
HOUSE = str(Path(kinfolk.__file__).parent)
# operators whose result or shape the host has to know
WAITS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "histc"}
WAITS |= {"_unique", "_unique2", "unique_dim", "unique_consecutive"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}


class Log:
    """What was noted, by kind and place."""

    def __init__(self) -> None:
        self.notes: Counter[tuple[str, str]] = Counter()

    def note(self, kind: str) -> None:
        """Note something at the line of the package that is being run."""
        frame, place = sys._getframe(1), "elsewhere"
        while frame is not None:
            if frame.f_code.co_filename.startswith(HOUSE):
                place = f"{frame.f_code.co_filename[len(HOUSE) + 1 :]}:{frame.f_lineno}"
                break
            frame = frame.f_back  # type: ignore[assignment]
        self.notes[kind, place] += 1

    def waits(self) -> int:
        """Return how many synchronisations there were."""
        return sum(n for (kind, _), n in self.notes.items() if kind.startswith("wait"))

    def faults(self) -> dict[tuple[str, str], int]:
        """Return everything that is wrong however rarely it happens."""
        return {at: n for at, n in self.notes.items() if not at[0].startswith("wait")}


LOG = Log()


class Pretended(Tensor):
    """A tensor whose numbers are in `inside`."""

    inside: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> "Pretended":
        made = Tensor._make_wrapper_subclass(
            cls,
            real.size(),
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=DEVICE,
        )
        made.inside = real
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def tolist(self) -> Any:
        LOG.note("wait tolist")
        return self.inside.tolist()


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator on the numbers inside, and note what a real accelerator would have made of it."""
    name, asked = func.overloadpacket.__name__, kwargs.get("device")
    if name == "_fused_sdp_choice":
        return 0  # the form that is made of plain operators
    tensors = [x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)]
    there = [x for x in tensors if isinstance(x, Pretended)]
    sent = asked is not None and torch.device(asked).type == DEVICE.type
    fetched = bool(there) and asked is not None and torch.device(asked).type == "cpu"
    _note_waits(func, args, there, fetched)
    _note_company(name, args, kwargs, [x for x in tensors if not isinstance(x, Pretended)], bool(there), sent)
    inner = dict(kwargs, device=torch.device("cpu")) if sent else kwargs
    out = func(*tree_map(_real, args), **tree_map(_real, inner))
    if not (there or sent) or fetched or name == "_local_scalar_dense":
        return out
    if name == "copy_" and not isinstance(args[0], Pretended):
        return args[0]
    known = {id(x.inside): x for x in there}
    if name == "_pack_padded_sequence":
        # how many rows each step has stays on the host, on every device
        return _wrapped(out[0], known), out[1]
    return tree_map(lambda x: _wrapped(x, known), out)


def _wrapped(x: Any, known: dict[int, Pretended]) -> Any:
    if not isinstance(x, Tensor):
        return x
    if x.dtype == torch.float64:
        LOG.note("float64")
    return known[id(x)] if id(x) in known else Pretended(x)


def _note_company(name: str, args: Any, kwargs: dict[str, Any], here: list[Tensor], there: bool, sent: bool) -> None:
    """Note tensors of both places in one operator; a copy between them must not be waited for."""
    if name not in ("_to_copy", "copy_"):
        # lengths of rows are on the host, whatever the device
        if name != "_pack_padded_sequence" and there and any(x.ndim for x in here):
            LOG.note(f"mixed {name}")
    elif here and (sent or there) and not (kwargs.get("non_blocking") or args[2:] == (True,)):
        LOG.note("wait copy")


def _note_waits(func: Any, args: Any, there: list[Pretended], fetched: bool) -> None:
    name = func.overloadpacket.__name__
    if not there:
        return
    if name in WAITS or fetched or (name == "repeat_interleave" and func._overloadname == "Tensor"):
        LOG.note(f"wait {name}")
    elif name in INDEXING:
        for index in args[1]:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                LOG.note("wait boolean index")


def _real(x: Any) -> Any:
    return x.inside if isinstance(x, Pretended) else x


class _Mode(TorchDispatchMode):
    """Catches what is made on the device out of nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def moved(module: nn.Module) -> nn.Module:
    """Move a module to the pretended device, in place; what is shared stays shared."""
    seen: dict[int, Tensor] = {}
    for part in module.modules():
        for name, p in part._parameters.items():
            if p is not None:
                made = nn.Parameter(Pretended(p.detach()), p.requires_grad)
                part._parameters[name] = seen.setdefault(id(p), made)  # type: ignore[assignment]
        for name, b in part._buffers.items():
            if b is not None:
                part._buffers[name] = seen.setdefault(id(b), Pretended(b))
        if isinstance(part, nn.RNNBase):
            part._flat_weights = [part._parameters[name] for name in part._flat_weights_names]  # type: ignore[misc]
    return module


@contextlib.contextmanager
def pretending() -> Iterator[Log]:
    """Let the pretended device exist: it has no float64 and no fused kernels, and operators note what they do."""
    LOG.notes.clear()
    narrow = mock.patch.object(devices, "widest", return_value=torch.float32)
    with narrow, _Mode():
        yield LOG
