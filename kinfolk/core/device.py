"""Devices: which accelerator there is, what it can do, and what the host knows without asking it.

Reading a number of a tensor on an accelerator makes the host wait until everything queued there has been computed.
What decides shapes and branches (which targets are scored, where padding is) comes from the host in the first place:
`send` keeps the host's copy beside the tensor, and `host` returns it without a synchronisation.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kinfolk.core.errors import SpecError

CPU = torch.device("cpu")
DRAWS = {torch.nn.init.normal_, torch.nn.init.uniform_, Tensor.normal_, Tensor.uniform_}
"""What fills a tensor with random numbers, as modes see it."""


def accelerator() -> torch.device | None:
    """Return the accelerator of this machine (CUDA, MPS, XPU), None where there is only the CPU."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed what is drawn on the CPU and on a device.

    `torch.manual_seed` also seeds accelerators that are not there, and formats the caller's stack for each: 0.35 ms,
    which is a share of a small step.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def choose_device(name: str = "auto", local: int = 0) -> torch.device:
    """Return the device of a name; "auto" is the accelerator if there is one.

    Of several accelerators a process takes the one with its number `local` on this machine.
    """
    there = accelerator()
    if name == "auto":
        device = there or CPU
    else:
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise SpecError(f"device: {str(error).splitlines()[0]}") from None
    known = ["cpu"] + ([there.type] if there is not None else [])
    if device.type not in (*known, "meta"):
        raise SpecError(f"device: {name!r} is not available here (known: {', '.join(known)})")
    if device.type in ("cpu", "meta"):
        return torch.device(device.type)
    n_devices = torch.accelerator.device_count()
    if device.index is not None and device.index >= n_devices:
        raise SpecError(f"device: {name!r} is not available here ({n_devices} of type {device.type})")
    return device if device.index is not None else torch.device(device.type, local % max(1, n_devices))


class _Undrawn(TorchFunctionMode):
    """Leave weights as they are in the place of drawing them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Build modules on the meta device: names and shapes of weights, no memory, nothing drawn.

    A normal distribution without values is drawn by PyTorch's compiler, whose import takes three seconds.
    """
    with torch.device("meta"), _Undrawn():
        yield


def synchronize(device: torch.device) -> None:
    """Wait until everything that was queued on a device is computed."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def widest(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device: float64, float32 on MPS, which has no other."""
    return torch.float32 if device.type == "mps" else torch.float64


def wide(x: Tensor) -> Tensor:
    """Return a tensor in the widest floating-point type of its device."""
    return x.to(widest(x.device))


_AS_IT_IS = contextlib.nullcontext()


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return the half-precision type that autocast uses on a device at present, None where it is off."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def full_precision(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Return a context without autocast on the device of a tensor."""
    return _AS_IT_IS if autocast_dtype(x.device) is None else torch.autocast(x.device.type, enabled=False)


def tally(index_n: Tensor, size: int) -> Tensor:
    """Count how often each number below `size` occurs: `torch.bincount`, which waits for an accelerator."""
    if index_n.device.type == "cpu":
        return torch.bincount(index_n, minlength=size)
    return index_n.new_zeros(size).scatter_add_(0, index_n, torch.ones_like(index_n))


def send(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a device without waiting for it, and keep the original for `host`."""
    if x.device.type != "cpu" or device.type == "cpu":
        return x.to(device)
    return remember(x.to(device, non_blocking=True), x)


def remember(x: Tensor, original: Tensor) -> Tensor:
    """Note what a tensor holds, as a tensor of the host; return the tensor."""
    x.on_host = original  # type: ignore[attr-defined]
    return x


def host(x: Tensor) -> Tensor:
    """Return the host's copy of a tensor; only one that was computed on an accelerator has to be waited for."""
    if x.device.type == "cpu":
        return x
    known: Tensor | None = getattr(x, "on_host", None)
    return x.cpu() if known is None else known


def known_on_host(x: Tensor) -> bool:
    """Tell whether `host` returns a tensor without a synchronisation."""
    return x.device.type == "cpu" or hasattr(x, "on_host")


def alongside(compute: Callable[..., tuple[Tensor, ...]], *inputs: Tensor | None) -> Any:
    """Compute something of tensors on their device and, where all are known there, on the host too."""
    outputs = compute(*inputs)
    known = [x for x in inputs if x is not None]
    if known[0].device.type != "cpu" and all(map(known_on_host, known)):
        for x, original in zip(outputs, compute(*(None if x is None else host(x) for x in inputs)), strict=True):
            remember(x, original)
    return outputs


def arange(start: int, stop: int, device: torch.device) -> Tensor:
    """Return consecutive numbers on a device; the host knows them too."""
    x = torch.arange(start, stop, device=device)
    return x if device.type == "cpu" else remember(x, torch.arange(start, stop))
