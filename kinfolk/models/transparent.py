"""A bridge to all layers: each layer of the decoder looks at a mixture of its own."""

from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import Rate
from kinfolk.core.context import Context
from kinfolk.core.cost import Cost
from kinfolk.core.encoder_output import EncoderOutput, LayerwiseOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.module import Dims, Module
from kinfolk.models.bridge import Bridge
from kinfolk.models.stack import Depth


class Transparent(Bridge, kind="transparent"):
    r"""$z_j = \sum_{i=0}^{N} s_{ij} h_i$ with $s_{\cdot j} = \mathrm{softmax}(W_{\cdot j})$ (Bapna et al. 2018).

    $h_0$ is the embedding, $h_i$ what the encoder's i-th layer leaves, $z_j$ what the decoder's j-th looks at. The norm
    that closes the encoder closes every state, so all weight on the last is the plain model; an encoder without one has
    its stream mixed as it is, as in Narang et al. 2021. `dropout` falls on W, before the softmax.
    """

    dropout: Rate = 0.0

    def build(self, encoder: Depth | None, decoder: Depth | None) -> Module:
        if encoder is None or decoder is None:
            raise SpecError("bridge: 'transparent' stands between an encoder and a decoder; the model has one of them")
        return _Transparent(self, encoder.n_layers + 1, decoder.n_layers)

    def cost(self, dims: Dims, encoder: Depth, decoder: Depth) -> Cost:
        n_in, n_out, d = encoder.n_layers + 1, decoder.n_layers, dims.d_model
        # the states side by side, and each mixture, which keys and values are made from
        return Cost(n_in * n_out, 2.0 * n_in * n_out * d, n_in * d + n_out * d)


class _Transparent(Module):
    def __init__(self, spec: Transparent, n_in: int, n_out: int) -> None:
        super().__init__()
        self.spec = spec
        self.logits_Nn = nn.Parameter(torch.zeros(n_in, n_out))

    def draw(self) -> None:
        """Draw mixtures that lean to some layers."""
        nn.init.normal_(self.logits_Nn, std=len(self.logits_Nn) ** -0.5)

    def forward(self, encoder: Any, x_BMD: Tensor, ctx: Context) -> EncoderOutput:
        last_BMD, states = encoder.layers(x_BMD, ctx, len(self.logits_Nn) - 1)
        # what the encoder returned is closed already
        states = [*(encoder.norm(h_BMD) for h_BMD in states[:-1]), last_BMD]
        weights_Nn = nn.functional.dropout(self.logits_Nn, self.spec.dropout, self.training).softmax(0)
        ctx.tap("layers", weights_Nn)
        mixed_nBMD = (weights_Nn.mT @ torch.stack(states).flatten(1)).unflatten(1, x_BMD.shape)
        keep_BM = None if ctx.padding is None else ctx.padding.keep_BL
        return LayerwiseOutput(mixed_nBMD[-1], keep_BM, layers_NBMD=mixed_nBMD)
