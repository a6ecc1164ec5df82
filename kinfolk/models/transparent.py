"""A bridge to all layers: each layer of the decoder looks at a mixture of its own."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.bounds import Rate
from kinfolk.core.context import Context, Taps
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
        heard = Layers(ctx.taps)
        last_BMD = encoder(x_BMD, ctx.replace(taps=heard), None)
        states = heard.states(x_BMD, len(self.logits_Nn))
        # what the encoder returned is closed already
        states = [*(encoder.norm(h_BMD) for h_BMD in states[:-1]), last_BMD]
        weights_Nn = nn.functional.dropout(self.logits_Nn, self.spec.dropout, self.training).softmax(0)
        ctx.tap("layers", weights_Nn)
        mixed_nBMD = (weights_Nn.mT @ torch.stack(states).flatten(1)).unflatten(1, x_BMD.shape)
        keep_BM = None if ctx.padding is None else ctx.padding.keep_BL
        return LayerwiseOutput(mixed_nBMD[-1], keep_BM, layers_NBMD=mixed_nBMD)


class Layers(Taps):
    """A listener to something of every layer, what it leaves if nothing else, between it and whoever else listens."""

    def __init__(self, others: Taps | None, name: str = "hidden") -> None:
        super().__init__(frozenset({name}))
        self.others = others

    def record(self, name: str, value: Tensor) -> None:
        super().record(name, value)
        if self.others is not None:
            self.others.record(name, value)

    def hears(self, name: str) -> bool:
        return super().hears(name) or (self.others is not None and self.others.hears(name))

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        with super().scope(name), contextlib.nullcontext() if self.others is None else self.others.scope(name):
            yield

    def states(self, x_BMD: Tensor, n: int) -> list[Tensor]:
        """Return the stream before the first layer and after each; a layer that did not run left it as it was."""
        found = [x_BMD]
        for i in range(n - 1):
            found.append(self.found.get(f"{i}.hidden", found[-1]))
        return found
