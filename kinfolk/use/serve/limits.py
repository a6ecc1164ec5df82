"""Server limits: batch, queue, context length, size of requests and timeouts."""

import dataclasses

from kinfolk.core.errors import SpecError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds that hold whatever clients do, so that time and memory are bounded too.

    rows: texts written at once, by each model.
    queue: texts that may wait; more are refused with 429.
    context: positions of a text where the model itself has no bound.
    prefill: tokens of prompts read between two steps, so that those who write do not wait long for those who come.
    piece: tokens of a long prompt read between two steps; it comes in alone.
    prefixes: bytes of keys and values of earlier prompts that each model keeps; 0: none.
    new: most tokens that one request may ask for.
    body: bytes of a request.
    seconds: how long a request may take before it is given up.
    body_seconds: how long a client may take to send its request.
    stall_seconds: how long a client may leave an answer unread.
    """

    rows: int = 16
    queue: int = 64
    context: int = 4096
    prefill: int = 2048
    piece: int = 256
    prefixes: int = 256 << 20
    new: int = 4096
    body: int = 1 << 20
    seconds: float = 300.0
    body_seconds: float = 20.0
    stall_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value <= 0 and not (field.name in ("queue", "prefixes") and value == 0):
                raise SpecError(f"{field.name}: {value} is not allowed; at least 1")
