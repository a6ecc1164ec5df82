"""Bridge of encoder-decoder RNNs: the decoder starts from the encoder's final states (Sutskever et al. 2014)."""

from typing import Any

import torch
from torch import Tensor

from kinfolk.core.context import Context
from kinfolk.core.encoder_output import EncoderOutput, RecurrentOutput
from kinfolk.core.errors import SpecError
from kinfolk.layers.mixers.rnn import FinalState, Recurrent
from kinfolk.layers.module import Module
from kinfolk.models.block import Block
from kinfolk.models.bridge import Bridge
from kinfolk.models.depth.depth import Depth
from kinfolk.models.stack import Stack


class Ends(Bridge, kind="ends"):
    """Encoder states and the final state of every recurrent layer (Sutskever et al. 2014, section 2).

    Layer n of the decoder begins with what layer n of the encoder ended with: output, and cell if it has one.
    """

    def check(self, encoder: Depth | None, decoder: Depth | None) -> None:
        if decoder is None or not isinstance(encoder, Stack) or not all(map(_recurrent, encoder.blocks)):
            raise SpecError("bridge: 'ends' needs an encoder of recurrent layers, and a decoder")
        wrong = [one.kind for one in encoder.wraps if one.reversible or one.skips]
        if wrong:
            raise SpecError(
                f"bridge: 'ends' takes the final state of every layer, which an encoder that is {wrong[0]!r} does not "
                "keep; use 'last-layer'"
            )

    def build(self, encoder: Depth | None, decoder: Depth | None) -> Module:
        assert encoder is not None
        return _Ends(encoder.n_layers)


def _recurrent(block: Block) -> bool:
    return bool(block.parts) and isinstance(block.parts[0], Recurrent)


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
