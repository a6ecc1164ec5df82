"""Axis Noise of weights: Gaussian weight noise and mixout regularisation in training."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import Rate
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec


class WeightNoise(Spec):
    """Axis: noise on the weights while training."""

    def build(self) -> "WeightDisturbance | None":
        """Return what disturbs weights; None where nothing does."""
        raise NotImplementedError


class WeightDisturbance:
    """What disturbs weights. `begin` gets the model as it is before the first step."""

    def begin(self, model: nn.Module) -> None:
        """See the weights that training begins with."""

    def over(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Disturb the weights of a model for one pass; gradients reach the true ones."""
        raise NotImplementedError


class NoNoise(WeightNoise, kind="none"):
    """Weights are what they are."""

    def build(self) -> WeightDisturbance | None:
        return None


class Mixout(WeightNoise, kind="mixout"):
    r"""At every pass some weights are those that training began with (Lee et al. 2020, section 3).

    A weight w is the old one u with probability p, and what is left is scaled so that its mean stays:
    $w' = (m\,u + (1 - m)\,w - p\,u) / (1 - p)$, $m \sim \mathrm{Bernoulli}(p)$. With u = 0 it is dropout of weights.
    The head, which began anew, has nothing to fall back to and is left alone. Backward passes must find the weights of
    the pass, so nothing may be recomputed.
    """

    p: Rate = 0.7

    def build(self) -> WeightDisturbance | None:
        return _Mixout(self.p)


class _Mixout(WeightDisturbance):
    def __init__(self, p: float) -> None:
        self.p = p
        self.old: dict[str, Tensor] = {}

    def begin(self, model: nn.Module) -> None:
        named = model.named_parameters()
        self.old = {name: x.detach().clone() for name, x in named if not name.startswith("head.")}

    def over(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        if not self.old:
            raise SpecError("noise: 'mixout' falls back to weights that were learnt before; begin with some")
        named = [(name, x) for name, x in model.named_parameters() if name in self.old and x.requires_grad]
        return swapped(model, {name: self._mixed(name, x) for name, x in named})

    def _mixed(self, name: str, x: Tensor) -> Tensor:
        old = self.old[name].to(x)
        falls = torch.bernoulli(torch.full_like(x, self.p))
        return (falls * old + (1 - falls) * x - self.p * old) / (1 - self.p)


@contextlib.contextmanager
def swapped(model: nn.Module, others: Mapping[str, Tensor]) -> Iterator[None]:
    """Let a model compute with other tensors in the place of its parameters for a while."""
    own = dict(model.named_parameters())
    given = {id(own[name]): other for name, other in others.items()}
    slots = [(m, key, x) for m in model.modules() for key, x in m._parameters.items() if x is not None]
    slots = [(m, key, x) for m, key, x in slots if id(x) in given]
    try:
        for module, key, x in slots:
            module._parameters[key] = given[id(x)]  # type: ignore[assignment]
        yield
    finally:
        for module, key, x in slots:
            module._parameters[key] = x
