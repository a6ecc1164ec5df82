"""LayerDrop: whole layers are skipped at random in training, so that a model bears to have fewer (Fan et al. 2020)."""

from typing import ClassVar

from kinfolk.core.bounds import NonNegativeInt, Rate
from kinfolk.core.rng import derive
from kinfolk.layers.module import Dims, Module
from kinfolk.models.depth.depth import Depth, DepthWrapper
from kinfolk.models.stack import Stack, StackModule


class DropLayers(DepthWrapper, kind="layer-drop"):
    """LayerDrop: every run of a block is skipped with probability `rate` in training, never in evaluation.

    Which ones depends on seed and step, so that all processes and all parts of a batch skip the same, and an encoder
    others than its decoder. Before the first step nothing is skipped. A skipped block is not called.
    """

    skips: ClassVar[bool] = True
    rate: Rate = 0.2
    seed: NonNegativeInt = 0

    def wrap(self, module: StackModule, stack: Stack, dims: Dims) -> None:
        module.layer_drop = _LayerDrop(self, dims)
        module.skips = module.layer_drop.skips  # type: ignore[method-assign]

    def of_level(self, level: int) -> "DropLayers":
        return self.replace(seed=self.seed + level)


class LayerDrop(Stack, kind="layer-drop"):
    """LayerDrop: a stack whose layers are dropped. A smaller model is the same with fewer numbers in `order`."""

    rate: Rate = 0.2
    seed: NonNegativeInt = 0

    @classmethod
    def of(cls, depth: Depth, rate: float, seed: int = 0) -> Depth:
        """Return a depth whose layers are dropped."""
        if type(depth) is Stack:
            return cls(**depth.unwrapped, rate=rate, seed=seed)
        return depth.wrap(DropLayers(rate=rate, seed=seed))

    @property
    def wraps(self) -> tuple[DepthWrapper, ...]:
        return (DropLayers(rate=self.rate, seed=self.seed),)


class _LayerDrop(Module):
    def __init__(self, spec: DropLayers, dims: Dims) -> None:
        super().__init__()
        self.spec, self.side, self.number = spec, dims.direction, 0

    def at_step(self, step: int) -> None:
        """Note the step of training; the first is 1."""
        self.number = step

    def skips(self, n: int) -> bool:
        """Tell whether the n-th run is skipped in this step."""
        if not self.training or not self.number:
            return False
        # an integer below 2^63 as a uniform number
        return derive(self.spec.seed, "layer-drop", self.side, self.number, n) / 2**63 < self.spec.rate
