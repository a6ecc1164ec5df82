"""Axis Head: language-model heads (tied, untied, adaptive softmax), from hidden states to logits and losses.

A head answers two questions about states: `logits(x)`, and `loss(x, targets)`, which never makes all the logits.
"""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kinfolk.core.batch import IGNORE
from kinfolk.core.bounds import NonNegativeFloat
from kinfolk.core.cost import Cost, linear
from kinfolk.core.device import host, remember, send
from kinfolk.core.spec import Spec
from kinfolk.layers.embeddings.embedding import EmbeddingModule
from kinfolk.layers.module import Dims, Linear, Module, borrow
from kinfolk.layers.norms.norm import LayerNorm, Norm
from kinfolk.ops.activated_linear import ACTIVATIONS, Activation
from kinfolk.ops.cross_entropy import CHUNK_BYTES, capped, cross_entropy, smoothing, token_losses

Tie = Literal["tied", "untied"]


class HeadModule(Module):
    """Base of heads over a vocabulary: an output layer, its loss by chunks, and the loss of each token."""

    bias: Tensor | None
    embedding: EmbeddingModule  # whose table is shared
    softcap = 0.0  # logits stay between -softcap and softcap; 0: no bound
    z_loss = 0.0  # weight of the squared log-normaliser in training
    packed: Any = None  # the output layer as a model that only decodes stores it
    n_scores = 0  # how many classes it scores at every position, where those are not the vocabulary

    @property
    def weight(self) -> Tensor:
        """The output layer's matrix [V, D]."""
        raise NotImplementedError

    def states(self, x_BLD: Tensor) -> Tensor:
        """Prepare the states for the output layer."""
        return x_BLD

    def answer(self, x_BLD: Tensor, keep_BL: Tensor | None) -> Tensor:
        """Return what the head says of whole sequences; one over a vocabulary says something at every position."""
        return self.logits(x_BLD)

    def logits(self, x_BLD: Tensor) -> Tensor:
        """Return scores over the vocabulary."""
        if self.packed is not None:
            return capped(self.packed(self.states(x_BLD)), self.softcap)
        return capped(nn.functional.linear(self.states(x_BLD), self.weight, self.bias), self.softcap)

    def loss(self, x_BLD: Tensor, targets_BL: Tensor, epsilon: float = 0.0, over: str = "all") -> Tensor:
        """Return the summed cross-entropy of the scored targets, smoothed by `epsilon`."""
        x_LD, targets_L = scored(x_BLD, targets_BL)
        gold, uniform = smoothing(epsilon, len(self.weight), over)
        states_LD, z = self.states(x_LD), self.z_loss if self.training else 0.0
        return cross_entropy(states_LD, self.weight, self.bias, targets_L, gold, uniform, self.softcap, z)

    @torch.no_grad()
    def losses(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        """Return the cross-entropy of every target, 0 where none is scored: for evaluation."""
        x_LD, targets_L = scored(x_BLD, targets_BL)
        losses_L = token_losses(self.states(x_LD), self.weight, self.bias, targets_L, softcap=self.softcap)
        return spread(losses_L, targets_BL)


class NormalisedHead(HeadModule):
    """Base of heads whose logits are log-probabilities already, since no single output layer makes them."""

    n_classes: int

    def log_probs(self, x_LD: Tensor) -> Tensor:
        """Return the log-probabilities of all classes: [L, V]."""
        raise NotImplementedError

    def total(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        """Return the summed cross-entropy, with a gradient."""
        raise NotImplementedError

    def each(self, x_LD: Tensor, targets_L: Tensor) -> Tensor:
        """Return the cross-entropy of each target, without a gradient."""
        raise NotImplementedError

    def logits(self, x_BLD: Tensor) -> Tensor:
        return self.log_probs(x_BLD.flatten(0, -2)).unflatten(0, x_BLD.shape[:-1])

    def loss(self, x_BLD: Tensor, targets_BL: Tensor, epsilon: float = 0.0, over: str = "all") -> Tensor:
        x_LD, targets_L = scored(x_BLD, targets_BL)
        if not epsilon:
            return self.total(x_LD, targets_L)
        # a smoothed target asks for every class, so pieces of the log-probabilities are made twice instead of kept
        gold, uniform = smoothing(epsilon, self.n_classes, over)
        total, step = x_LD.new_zeros(()), max(1, CHUNK_BYTES // (4 * self.n_classes))
        for x_lD, targets_l in zip(x_LD.split(step), targets_L.split(step), strict=True):
            total = total + checkpoint(self._smoothed, x_lD, targets_l, gold, uniform, use_reentrant=False)
        return total

    def _smoothed(self, x_LD: Tensor, targets_L: Tensor, gold: float, uniform: float) -> Tensor:
        log_probs_LV = self.log_probs(x_LD)
        return -gold * log_probs_LV.gather(-1, targets_L[:, None]).sum() - uniform * log_probs_LV.sum()

    @torch.no_grad()
    def losses(self, x_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        x_LD, targets_L = scored(x_BLD, targets_BL)
        return spread(self.each(x_LD, targets_L), targets_BL)


def scored(x_BLD: Tensor, targets_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states and targets of scored positions only; the rest is not worth an output layer."""
    at_L, known = _places(targets_BL), host(targets_BL).flatten()
    x_LD, targets_L = x_BLD.flatten(0, 1), targets_BL.flatten()
    if at_L is None:
        return x_LD, _alongside(targets_L, known)
    here_L = send(at_L, x_BLD.device)
    return x_LD[here_L], _alongside(targets_L[here_L], known[at_L])


def spread(losses_L: Tensor, targets_BL: Tensor) -> Tensor:
    """Return losses of scored positions where those are, 0 elsewhere."""
    at_L = _places(targets_BL)
    if at_L is None:
        return losses_L.view_as(targets_BL)
    out_L = losses_L.new_zeros(targets_BL.numel())
    return out_L.index_copy_(0, send(at_L, losses_L.device), losses_L).view_as(targets_BL)


def _places(targets_BL: Tensor) -> Tensor | None:
    """Return where targets are scored, counted through all examples, as the host knows it; None: everywhere."""
    keep_L = host(targets_BL).flatten() != IGNORE
    return None if bool(keep_L.all()) else keep_L.nonzero()[:, 0]


def _alongside(x: Tensor, known: Tensor) -> Tensor:
    return x if x.device.type == "cpu" else remember(x, known)


class Head(Spec):
    """Axis: output heads: from hidden states to logits, labels, spans, values or vectors."""

    @property
    def n_labels(self) -> int:
        """How many classes or tags it scores; 0 where it scores none."""
        return 0

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        """Return the module; a tied head shares the embedding's table."""
        raise NotImplementedError

    def cost(self, dims: Dims) -> Cost:
        """Return its cost per scored token."""
        raise NotImplementedError


def output_cost(dims: Dims, weights: str, bias: bool) -> Cost:
    """Return the cost of an output layer; a tied one goes through the width of the shared table."""
    if weights == "untied":
        return linear(dims.d_model, dims.vocab_size, bias)
    width = dims.d_table or dims.d_model
    inward = linear(dims.d_model, width, False) if width != dims.d_model else Cost()
    both = inward + linear(width, dims.vocab_size, bias)
    return Cost(dims.vocab_size if bias else 0, both.flops, both.kept)


class LMHead(Head, kind="lm"):
    """Language-model head: a linear map, "tied" to the embedding (Press and Wolf 2017) or "untied".

    `scale` "rsqrt" divides states by sqrt(d_model), so that a table of unit vectors gives logits of their size (T5).
    `softcap` c bounds logits, c tanh(x / c), 0: not (Gemma Team 2024). `z_loss` weighs the squared log-normaliser,
    which training adds to the loss (Chowdhery et al. 2022, section 5).
    """

    weights: Tie = "tied"
    bias: bool = False
    scale: Literal["none", "rsqrt"] = "none"
    softcap: NonNegativeFloat = 0.0
    z_loss: NonNegativeFloat = 0.0

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return LMHeadModule(self, dims, embedding)

    def cost(self, dims: Dims) -> Cost:
        return output_cost(dims, self.weights, self.bias)


class LMHeadModule(HeadModule):
    """Language-model head with a matrix of its own or that of the embedding."""

    def __init__(self, spec: LMHead, dims: Dims, embedding: EmbeddingModule) -> None:
        super().__init__()
        self.untied = Linear(dims.d_model, dims.vocab_size, bias=False) if spec.weights == "untied" else None
        self.bias = nn.Parameter(torch.zeros(dims.vocab_size)) if spec.bias else None
        self.scale = dims.d_model**-0.5 if spec.scale == "rsqrt" else 1.0
        self.softcap, self.z_loss = spec.softcap, spec.z_loss
        borrow(self, "embedding", embedding)

    @property
    def weight(self) -> Tensor:
        return self.embedding.weight if self.untied is None else self.untied.weight

    def states(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD if self.scale == 1.0 else x_BLD * self.scale
        return self.embedding.inward(x_BLD) if self.untied is None else x_BLD


class MaskedLMHead(Head, kind="masked-lm"):
    """Masked-LM head: linear map, activation and norm, then the tied output layer (Devlin et al. 2019; released code).

    `to` "table": the map leads to the width of the shared table, where that is narrower than the model (Lan et al.
    2020); "model": it stays in the width of the model, and the table's own map leads back. `bias` is that of the map.
    """

    activation: Activation = "gelu"
    norm: Norm = LayerNorm(eps=1e-12)
    to: Literal["model", "table"] = "model"
    bias: bool = True

    def build(self, dims: Dims, embedding: EmbeddingModule) -> HeadModule:
        return MaskedLMHeadModule(self, dims, embedding)

    def cost(self, dims: Dims) -> Cost:
        if self.to == "table":
            narrow = dims.d_table or dims.d_model
            dims = dataclasses.replace(dims, d_table=0)
            output = output_cost(dataclasses.replace(dims, d_model=narrow), "tied", True)
        else:
            narrow, output = dims.d_model, output_cost(dims, "tied", True)
        return linear(dims.d_model, narrow, self.bias) + Cost(kept=narrow) + self.norm.cost(narrow) + output


class MaskedLMHeadModule(HeadModule):
    """Masked-LM head: a transform layer before the tied output layer."""

    def __init__(self, spec: MaskedLMHead, dims: Dims, embedding: EmbeddingModule) -> None:
        super().__init__()
        self.narrows = spec.to == "table"
        width = embedding.weight.shape[1] if self.narrows else dims.d_model
        self.transform = Linear(dims.d_model, width, bias=spec.bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = spec.norm.build(width)
        self.bias = nn.Parameter(torch.zeros(dims.vocab_size))
        borrow(self, "embedding", embedding)

    @property
    def weight(self) -> Tensor:
        return self.embedding.weight

    def states(self, x_BLD: Tensor) -> Tensor:
        x_BLD = self.norm(self.activation(self.transform(x_BLD)))
        return x_BLD if self.narrows else self.embedding.inward(x_BLD)
