"""Axis Head: from the last states to predictions and their losses.

A head answers two questions about states: `logits(x)`, and `loss(x, targets)`, which never makes all the logits.
"""

import torch
from torch import Tensor, nn

from kinfolk.core.batch import IGNORE
from kinfolk.core.cost import Cost, linear
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Linear, Module, borrow
from kinfolk.layers.norm import LayerNorm, Norm
from kinfolk.ops.activated_linear import ACTIVATIONS
from kinfolk.ops.cross_entropy import cross_entropy, smoothing, token_losses


class HeadModule(Module):
    """What heads over a vocabulary share: an output layer, its loss by chunks, and the loss of each token."""

    bias: Tensor | None
    embedding: Module | None = None  # whose table is shared

    @property
    def weight(self) -> Tensor:
        """The output layer's matrix [V, D]."""
        raise NotImplementedError

    def states(self, x_BLD: Tensor) -> Tensor:
        """Prepare the states for the output layer."""
        return x_BLD

    def logits(self, x_BLD: Tensor) -> Tensor:
        """Return scores over the vocabulary."""
        return nn.functional.linear(self.states(x_BLD), self.weight, self.bias)

    def loss(self, x_BLD: Tensor, targets_BL: Tensor, epsilon: float = 0.0, over: str = "all") -> Tensor:
        """Return the summed cross-entropy of the scored targets, smoothed by `epsilon`."""
        x_LD, targets_L = scored(x_BLD, targets_BL)
        gold, uniform = smoothing(epsilon, len(self.weight), over)
        return cross_entropy(self.states(x_LD), self.weight, self.bias, targets_L, gold, uniform)

    @torch.no_grad()
    def losses(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return the cross-entropy of every target, 0 where none is scored: for evaluation."""
        out_BL = torch.zeros(targets_BL.shape, dtype=x_BLD.dtype, device=x_BLD.device)
        x_LD, targets_L = scored(x_BLD, targets_BL)
        out_BL[targets_BL != IGNORE] = token_losses(self.states(x_LD), self.weight, self.bias, targets_L)
        return out_BL


def scored(x_BLD: Tensor, targets_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states and targets of scored positions only; the rest is not worth an output layer."""
    keep_BL = targets_BL != IGNORE
    if bool(keep_BL.all()):
        return x_BLD.flatten(0, 1), targets_BL.flatten()
    return x_BLD[keep_BL], targets_BL[keep_BL]


class Head(Spec):
    """Axis: from states to an output."""

    def build(self, dims: Dims, embedding: Module) -> HeadModule:
        """Return the module; a tied head shares the embedding's table."""
        raise NotImplementedError

    def cost(self, dims: Dims) -> Cost:
        """Return its cost per scored token."""
        raise NotImplementedError


class LMHead(Head, kind="lm"):
    """A linear map to the vocabulary, its matrix "tied" to the embedding (Press and Wolf 2017) or "untied"."""

    weights: str = "tied"
    bias: bool = False

    def __post_init__(self) -> None:
        if self.weights not in ("tied", "untied"):
            raise SpecError(f"weights: unknown {self.weights!r}{suggest(self.weights, ('tied', 'untied'))}")

    def build(self, dims: Dims, embedding: Module) -> HeadModule:
        return _LMHead(self, dims, embedding)

    def cost(self, dims: Dims) -> Cost:
        own = linear(dims.d_model, dims.vocab_size, self.bias, kept=True)
        shared = dims.d_model * dims.vocab_size if self.weights == "tied" else 0
        return own + Cost(params=-shared)


class _LMHead(HeadModule):
    def __init__(self, spec: LMHead, dims: Dims, embedding: Module) -> None:
        super().__init__()
        self.untied = Linear(dims.d_model, dims.vocab_size, bias=False) if spec.weights == "untied" else None
        self.bias = nn.Parameter(torch.zeros(dims.vocab_size)) if spec.bias else None
        borrow(self, "embedding", embedding)

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.embedding.weight if self.untied is None else self.untied.weight  # type: ignore[union-attr,assignment]
        return weight


class MaskedLMHead(Head, kind="masked-lm"):
    """A linear map, activation and norm before the tied output layer (Devlin et al. 2019; its released code)."""

    activation: str = "gelu"
    norm: Norm = LayerNorm(eps=1e-12)

    def build(self, dims: Dims, embedding: Module) -> HeadModule:
        return _MaskedLMHead(self, dims, embedding)

    def cost(self, dims: Dims) -> Cost:
        transform = linear(dims.d_model, dims.d_model, True) + Cost(kept=dims.d_model) + self.norm.cost(dims.d_model)
        return transform + linear(dims.d_model, dims.vocab_size, True) + Cost(params=-dims.d_model * dims.vocab_size)


class _MaskedLMHead(HeadModule):
    def __init__(self, spec: MaskedLMHead, dims: Dims, embedding: Module) -> None:
        super().__init__()
        self.transform = Linear(dims.d_model, dims.d_model)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = spec.norm.build(dims.d_model)
        self.bias = nn.Parameter(torch.zeros(dims.vocab_size))
        borrow(self, "embedding", embedding)

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.embedding.weight  # type: ignore[union-attr,assignment]
        return weight

    def states(self, x_BLD: Tensor) -> Tensor:
        states: Tensor = self.norm(self.activation(self.transform(x_BLD)))
        return states
