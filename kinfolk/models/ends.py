"""A bridge by states: a recurrent decoder goes on where a recurrent encoder ended."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.context import Context, Taps
from kinfolk.core.encoder_output import EncoderOutput, RecurrentOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.rnn import Recurrent
from kinfolk.layers.module import Module
from kinfolk.models.bridge import Bridge
from kinfolk.models.stack import Depth, Stack


class Ends(Bridge, kind="ends"):
    """The states after the last layer, and the last state of every layer (Sutskever et al. 2014, section 2).

    Layer n of the decoder begins with what layer n of the encoder ended with: output, and cell if it has one.
    """

    def build(self, encoder: Depth | None, decoder: Depth | None) -> Module:
        layers = [encoder.blocks[i].parts for i in encoder.order] if isinstance(encoder, Stack) else [()]
        if decoder is None or not all(parts and isinstance(parts[0], Recurrent) for parts in layers):
            raise SpecError("bridge: 'ends' needs an encoder of recurrent layers, and a decoder")
        return _Ends(len(layers))


class _Ends(Module):
    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.n_layers = n_layers

    def forward(self, encoder: Any, x_BMD: Tensor, ctx: Context) -> EncoderOutput:
        heard = _EndsTaps(ctx.taps, "ends")
        last_BMD = encoder(x_BMD, ctx.replace(taps=heard), None)
        ends_NBS = torch.stack([heard.found[f"{n}.0.ends"] for n in range(self.n_layers)])
        keep_BM = None if ctx.padding is None else ctx.padding.keep_BL
        return RecurrentOutput(last_BMD, keep_BM, ends_NBS=ends_NBS)


class _EndsTaps(Taps):
    """A listener to the last recurrent state of every layer, which passes everything on to another listener."""

    def __init__(self, others: Taps | None, name: str) -> None:
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
