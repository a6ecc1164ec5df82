"""A stack that leaves out whole layers while it learns, so that it can do with fewer later."""

from typing import Any

from kinfolk.core.bounds import NonNegativeInt, Rate
from kinfolk.core.rng import derive
from kinfolk.layers.module import Dims
from kinfolk.models.stack import DepthModule, Stack, StackModule


class LayerDrop(Stack, kind="layer-drop"):
    """Every run of a block is skipped with probability `rate` in training, never in evaluation (Fan et al. 2020).

    A smaller model is the same with fewer numbers in `order`. Who is skipped depends on seed and step, so that all
    processes and all parts of a batch skip the same, and an encoder others than its decoder. Before the first step
    nothing is skipped. What is skipped costs nothing.
    """

    rate: Rate = 0.2
    seed: NonNegativeInt = 0

    @classmethod
    def of(cls, stack: Stack, rate: float, seed: int = 0) -> "LayerDrop":
        """Return a stack whose layers are dropped."""
        fields: dict[str, Any] = {name: getattr(stack, name) for name in ("blocks", "order", "norm", "position")}
        return cls(**fields, rate=rate, seed=seed)

    def build(self, dims: Dims) -> DepthModule:
        return _LayerDrop(self, dims)


class _LayerDrop(StackModule):
    def __init__(self, spec: LayerDrop, dims: Dims) -> None:
        super().__init__(spec, dims)
        self.spec, self.side, self.step = spec, dims.direction, 0

    def at_step(self, step: int) -> None:
        """Begin a step of training; the first is 1."""
        self.step = step

    def runs(self) -> list[tuple[int, int]]:
        every = super().runs()
        if not self.training or not self.step:
            return every
        now = (self.spec.seed, "layer-drop", self.side, self.step)
        return [(n, i) for n, i in every if derive(*now, n) / 2**63 >= self.spec.rate]
