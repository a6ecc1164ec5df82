"""Parameters, FLOPs and activation memory of a part in closed form, added up over a spec without building anything."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes a cost depends on besides the widths: tokens of the sequence, and of the encoder's memory."""

    length: int
    memory: int = 0


@dataclasses.dataclass(frozen=True)
class Cost:
    """Parameters; floating-point operations of the forward pass and numbers kept for the backward pass, per token."""

    params: int = 0
    flops: float = 0.0
    kept: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.params + other.params, self.flops + other.flops, self.kept + other.kept)

    def again(self) -> "Cost":
        """Return the cost of running the same weights once more."""
        return Cost(0, self.flops, self.kept)

    def scaled(self, times: float) -> "Cost":
        """Return the same weights run on `times` as many tokens."""
        return Cost(self.params, self.flops * times, self.kept * times)


def linear(d_in: int, d_out: int, bias: bool, kept: bool = True) -> Cost:
    """Return the cost of a linear map; its input is kept unless somebody else keeps it."""
    return Cost(d_in * d_out + (d_out if bias else 0), 2.0 * d_in * d_out, d_in if kept else 0)
