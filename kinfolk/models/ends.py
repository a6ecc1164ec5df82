"""Bridge of encoder-decoder RNNs: the decoder starts from the encoder's final states (Sutskever et al. 2014)."""

from typing import Any

import torch
from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.encoder_output import EncoderOutput, RecurrentOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.rnn import FinalState, Recurrent
from kinfolk.layers.module import Module
from kinfolk.models.bridge import Bridge
from kinfolk.models.depth.depth import Depth
from kinfolk.models.stack import Stack


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
        finals = [FinalState() for _ in range(self.n_layers)]
        last_BMD = encoder(x_BMD, ctx, [[final] for final in finals])
        ends_NBS = torch.stack([final.end_BS for final in finals if final.end_BS is not None])
        keep_BM = None if ctx.padding is None else ctx.padding.keep_BL
        return RecurrentOutput(last_BMD, keep_BM, ends_NBS=ends_NBS)
