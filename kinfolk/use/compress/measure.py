"""Measure a model: quality on held-out data, size, speed beside another, and peak memory."""

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng, derive
from kinfolk.data import Batches, Data
from kinfolk.family.recipe import Recipe
from kinfolk.layers.linear_maps import WholeMap
from kinfolk.models.model import Transformer
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.measures.measure import measure_of
from kinfolk.train.evaluate import evaluate, scoring
from kinfolk.train.run import reading_of
from kinfolk.use.inspect.removal import mean_loss

PER_BYTE, PER_CALL, WHOLE = 5.0, 200_000.0, 0.5
"""What a byte moved and an operation begun cost beside a product, and an int8 product beside one of floats.

50 billion operations and 10 billion bytes a second, and four microseconds to begin: a core of today's processors.
"""
TIMINGS = 9
"""Pairs of passes that are timed; the median counts, so that one that was disturbed does not."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A model after a step.

    params: numbers that it has; bytes: of its weights, as they are stored; zeros: the share of its numbers that are
    zero; loss: the first of `measures`, all of them over validation data; speed: the work of a forward pass of the
    model before the first step by that of this one, as `work` counts it, so that it is the same in every run and may
    decide; timed: the same by the clock, passes taken in turn, which says what this machine made of it just now;
    memory: bytes of weights, and of the tensors of one such pass at their most.
    """

    step: str
    params: int
    bytes: int
    zeros: float
    loss: float
    measures: dict[str, float]
    speed: float
    memory: int = 0
    timed: float = 1.0

    @property
    def quality(self) -> tuple[str, float]:
        """The measure that decides, and its value: the first of which more is better, or else the loss."""
        return next(
            ((k, v) for k, v in self.measures.items() if measure_of(k).higher), next(iter(self.measures.items()))
        )

    def worse(self, first: "Measurement") -> float:
        """Return by how much of it the quality is worse than another's: 0.01 is 1 % more loss or less accuracy."""
        (name, now), (_, before) = self.quality, first.quality
        if not math.isfinite(now) or before == 0:
            return math.inf
        return 1 - now / before if measure_of(name).higher else now / before - 1


@dataclasses.dataclass(frozen=True, eq=False)
class Judge:
    """Measures models beside the first one, on the same batches."""

    recipe: Recipe
    data: Data
    first: Transformer
    n_valid: int = 16

    def measure(self, name: str, learner: Learner) -> Measurement:
        """Measure a model in its present state."""
        valid = Batches(self.data.split("valid"), shuffle=False, **reading_of(self.recipe.training))
        scores = {measure: score.mean for measure, score in evaluate(learner, valid, self.n_valid).items()}
        model = learner.model
        own = list(model.parameters())
        params = sum(p.numel() for p in own)
        size = sum(p.numel() * p.element_size() for p in own)
        zeros = sum(int((p == 0).sum()) for p in own) / max(1, params)
        batch = learner.prepare(valid.at(0), Rng(derive(0, "valid")))
        memory = size + peak(model, batch) + sum(m.held for m in model.modules() if isinstance(m, WholeMap))
        speed = 1.0 if model is self.first else work(self.first, batch) / work(model, batch)
        timed = faster(model, self.first, batch)
        return Measurement(name, params, size, zeros, next(iter(scores.values())), scores, speed, memory, timed)


@torch.inference_mode()
def faster(model: Transformer, first: Transformer, batch: Batch) -> float:
    """Return how many times as fast as another model this one runs, by the median of passes in turn."""
    if model is first:
        return 1.0
    ratios = []
    with scoring(first), scoring(model):
        for one in (first, model):
            one.run(batch)
        for _ in range(TIMINGS):
            took = []
            for one in (first, model):
                start = time.perf_counter()
                one.run(batch).logits  # noqa: B018 - made when it is asked for
                took.append(time.perf_counter() - start)
            ratios.append(took[0] / took[1])
    return statistics.median(ratios)


def work(model: Transformer, batch: Batch) -> float:
    """Count the work of one pass, in floating-point operations: of products, of bytes moved, of operations begun.

    A roofline with fixed numbers (`PER_BYTE`, `PER_CALL`, `WHOLE`): an estimate of the time on a processor's core, and
    the same number whenever and wherever it is counted.
    """
    with scoring(model), _Work() as counting:
        model.run(batch).logits  # noqa: B018
    return counting.total


class _Work(TorchDispatchMode):
    """Adds up what every operation of a pass costs; views cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [x for x in (*args, out) if isinstance(x, torch.Tensor)]
            moved = sum(x.numel() * x.element_size() for x in tensors)
            self.total += PER_CALL + PER_BYTE * moved + _products(func, args, kwargs or {}, out)
        return out


def _products(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Return the floating-point operations of an operation's products."""
    counting = flop_registry.get(func._overloadpacket)
    if counting is not None:
        return float(counting(*args, **kwargs, out_val=out))
    name = str(func._overloadpacket)
    if "scaled_dot_product" in name:
        q, k = args[:2]
        return 4.0 * q.numel() * k.shape[-2]
    if name == "quantized.linear_dynamic":
        x = args[0]
        return WHOLE * 2.0 * x.numel() * out.shape[-1] + PER_BYTE * x.shape[-1] * out.shape[-1]
    return 0.0


def peak(model: Transformer, batch: Batch) -> int:
    """Return the most bytes that the tensors of one pass hold at once, without those of the weights."""
    with scoring(model), _Living([*model.parameters(), *model.buffers()]) as living:
        model.run(batch).logits  # noqa: B018
    return living.most


class _Living(TorchDispatchMode):
    """Adds up the storages that are alive, looked at after every operation."""

    def __init__(self, known: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.known = {x.untyped_storage()._cdata for x in known}
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, torch.Tensor) and x.layout == torch.strided and not x.is_quantized:
                storage = x.untyped_storage()
                if storage._cdata not in self.known:
                    self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: one for key, one in self.alive.items() if not one[0].expired()}
        self.most = max(self.most, sum(size for _, size in self.alive.values()))
        return out


def loss_of(learner: Learner, model: Transformer, batches: Sequence[Batch]) -> float:
    """Return the loss of a model in the place of another, in nats per target."""
    return mean_loss(Learner(model.eval(), learner.objective, learner.vocabulary), batches)
