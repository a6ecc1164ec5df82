"""Axis AlignmentScore: additive and multiplicative attention scores (Bahdanau et al. 2015; Luong et al. 2015).

One head without value projections: the values are the encoder's states themselves. The softmax is that of
`kinfolk.ops.attention.attend`, as everywhere.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from kinfolk.core.cost import Cost, Shape, linear
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.core.spec import Spec
from kinfolk.layers.module import Dims, Linear, Module
from kinfolk.ops.additive import additive
from kinfolk.ops.attention.attend import attend
from kinfolk.ops.attention.scores import Scoring, View
from kinfolk.ops.patterns.leaves import Full


class AlignmentScore(Spec):
    """Axis: how an RNN's state is scored against encoder states, in additive or multiplicative attention.

    The module has `keys(states_BMD)` once for a sequence, then `look(s_BLD, keys_BMD, memory)` for some of its tokens.
    """

    maps: ClassVar[tuple[int, int, int]]  # maps of the encoder's states, of the decoder's, and vectors

    def build(self, dims: Dims) -> "ScoreModule":
        """Return the module."""
        raise NotImplementedError

    def cost(self, dims: Dims, shape: Shape) -> Cost:
        """Return its cost for each token of the decoder, with its share of the keys; what is kept is the RNN's."""
        d, m = dims.d_model, shape.memory
        of_memory, of_state, vectors = self.maps
        keys = linear(d, of_memory * d, False, kept=False).scaled(m / shape.length)
        products = 2.0 * m * d * (2 + vectors)
        return keys + linear(d, of_state * d, False, kept=False) + Cost(vectors * d, products)


class DotScore(AlignmentScore, kind="dot-score"):
    r"""Dot-product score $s \cdot h$ (Luong et al. 2015, equation 8)."""

    maps: ClassVar[tuple[int, int, int]] = (0, 0, 0)

    def build(self, dims: Dims) -> "ScoreModule":
        return ScoreModule()


class General(AlignmentScore, kind="general-score"):
    r"""General (bilinear) score $s \cdot W h$ (Luong et al. 2015, equation 8)."""

    maps: ClassVar[tuple[int, int, int]] = (1, 0, 0)

    def build(self, dims: Dims) -> "ScoreModule":
        return _General(dims)


class Additive(AlignmentScore, kind="additive-score"):
    r"""Additive score $v \cdot \tanh(W s + U h)$ (Bahdanau et al. 2015, appendix A.1.2)."""

    maps: ClassVar[tuple[int, int, int]] = (1, 1, 1)

    def build(self, dims: Dims) -> "ScoreModule":
        return _Additive(dims)


class ScoreModule(Module):
    """Dot-product score; base of the others."""

    def keys(self, states_BMD: Tensor) -> Tensor:
        """Return the keys of an encoder's states."""
        return states_BMD

    def query(self, s_BLD: Tensor) -> Tensor:
        """Return the queries of a decoder's states."""
        return s_BLD

    def scoring(self) -> Scoring:
        """Return how queries and keys are scored."""
        return Scoring(scale=1.0)

    def look(self, s_BLD: Tensor, keys_BMD: Tensor, memory: EncoderOutput, heard: list[Tensor] | None) -> Tensor:
        """Return the mean of the encoder's states, weighted by a softmax of scores; weights are added to `heard`."""
        scoring, view = self.scoring(), View(keep_BM=memory.keep_BM)
        if heard is not None:
            scoring = Scoring(scale=scoring.scale, bias=scoring.bias, tap=heard.append)
        q_B1LD, k_B1MD, v_B1MD = (x.unsqueeze(1) for x in (self.query(s_BLD), keys_BMD, memory.states_BMD))
        return attend(q_B1LD, k_B1MD, v_B1MD, Full(), view, scoring)[:, 0]


class _General(ScoreModule):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.map = Linear(dims.d_model, dims.d_model, bias=False)

    def keys(self, states_BMD: Tensor) -> Tensor:
        mapped: Tensor = self.map(states_BMD)
        return mapped


class _Additive(ScoreModule):
    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.of_memory = Linear(dims.d_model, dims.d_model, bias=False)
        self.of_state = Linear(dims.d_model, dims.d_model, bias=False)
        self.v_D = nn.Parameter(torch.zeros(dims.d_model))

    def draw(self) -> None:
        """Draw the vector; the paper begins with zeros, from which the maps would learn nothing at first."""
        nn.init.normal_(self.v_D, std=len(self.v_D) ** -0.5)

    def keys(self, states_BMD: Tensor) -> Tensor:
        mapped: Tensor = self.of_memory(states_BMD)
        return mapped

    def query(self, s_BLD: Tensor) -> Tensor:
        mapped: Tensor = self.of_state(s_BLD)
        return mapped

    def scoring(self) -> Scoring:
        # the product of the executor counts for nothing; the score is all bias
        return Scoring(scale=0.0, bias=lambda q, k, q_pos, k_pos, heads: additive(q, k, self.v_D))
