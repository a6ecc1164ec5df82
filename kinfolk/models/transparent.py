"""Transparent attention: each decoder layer attends to a learned mixture of all encoder layers (Bapna et al. 2018)."""

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
from kinfolk.models.depth.depth import Depth
from kinfolk.models.reader import AllLayers, LayerReader, LayerReading


class Transparent(Bridge, kind="transparent"):
    r"""Transparent attention: $z_j = \sum_{i=0}^{N} \mathrm{softmax}(W_{\cdot j})_i\, h_i$ (Bapna et al. 2018).

    $h_0$ is the embedding, $h_i$ the output of encoder layer i, and decoder layer j attends to $z_j$. The norm
    that closes the encoder closes every state, so all weight on the last is the plain model; an encoder without one has
    its stream mixed as it is, as in Narang et al. 2021. `dropout` falls on W, before the softmax.
    """

    dropout: Rate = 0.0

    def check(self, encoder: Depth | None, decoder: Depth | None) -> None:
        if encoder is None or decoder is None:
            raise SpecError("bridge: 'transparent' is between an encoder and a decoder; the model has one of them")
        if not encoder.readable:
            raise SpecError(
                f"bridge: 'transparent' mixes all layers, and those of an encoder of kind {encoder.kind!r} have "
                "sequences of different lengths; use 'narrowest' or 'last-layer'"
            )

    def build(self, encoder: Depth | None, decoder: Depth | None) -> Module:
        assert encoder is not None
        assert decoder is not None
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
        weights_Nn = nn.functional.dropout(self.logits_Nn, self.spec.dropout, self.training).softmax(0)
        mixture = _Mixture(weights_Nn, encoder.norm)
        reading = LayerReading(mixture)
        mixed_nBMD = mixture.mixed(encoder.run(x_BMD, ctx, None, reading), reading.total)
        ctx.tap("layers", weights_Nn)
        keep_BM = None if ctx.padding is None else ctx.padding.keep_BL
        return LayerwiseOutput(mixed_nBMD[-1], keep_BM, layers_NBMD=mixed_nBMD)


class _Mixture(AllLayers):
    """Mixture of layers: all states side by side in one matrix product; or a running sum, where no state is kept."""

    def __init__(self, weights_Nn: Tensor, norm: nn.Module) -> None:
        super().__init__(len(weights_Nn) - 1)
        self.weights_Nn, self.norm = weights_Nn, norm

    @property
    def streaming(self) -> LayerReader:
        return _Streaming(self.weights_Nn, self.norm)

    def mixed(self, last_BMD: Tensor, total: Any) -> Tensor:
        """Return the mixtures; the output of the encoder, which its norm has closed already, is the last state."""
        if not isinstance(total, list):
            return _share(total, self.weights_Nn[-1], last_BMD)
        states = [*(self.norm(h_BMD) for h_BMD in self.every(total)[:-1]), last_BMD]
        return (self.weights_Nn.mT @ torch.stack(states).flatten(1)).unflatten(1, last_BMD.shape)


class _Streaming(LayerReader):
    def __init__(self, weights_Nn: Tensor, norm: nn.Module) -> None:
        self.weights_Nn, self.norm = weights_Nn, norm

    @property
    def weights(self) -> list[Tensor]:
        return [self.weights_Nn, *self.norm.parameters()]

    def start(self, x_BLD: Tensor) -> Tensor:
        return _share(None, self.weights_Nn[0], self.norm(x_BLD))

    def add(self, n: int, after_BLD: Tensor, carry: Any, total: Tensor) -> Tensor:
        # the last state is the output of the encoder
        return total if n == len(self.weights_Nn) - 2 else _share(total, self.weights_Nn[n + 1], self.norm(after_BLD))


def _share(total_nBMD: Tensor | None, weights_n: Tensor, h_BMD: Tensor) -> Tensor:
    share_nBMD = weights_n[:, None, None, None] * h_BMD
    return share_nBMD if total_nBMD is None else total_nBMD + share_nBMD
