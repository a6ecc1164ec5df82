"""The modules that are traced: a model's own parts, called with tensors only.

Rows of a graph's batch have no padding inside: a decoder gets where each row's new tokens begin, and rows of unequal
prompts are read one length at a time. What is not there is known by positions: a key at a negative one is none.
"""

from typing import Any

import torch
from torch import Tensor

from kinfolk.core.annotations import Segments
from kinfolk.core.context import Context, Padding
from kinfolk.core.encoder_output import EncoderOutput
from kinfolk.layers.mixers.attentional_rnn import Begun
from kinfolk.layers.mixers.rnn import Carried
from kinfolk.layers.module import Module
from kinfolk.models.model import Transformer
from kinfolk.use.onnx.fused import Reach, has_fused
from kinfolk.use.onnx.states import Layers, looks


class Graph(Module):
    """What is traced: named tensors in, named tensors out."""

    inputs: list[str]
    outputs: list[str]

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model: Any = model

    def embedded(self, tokens_BL: Tensor, ctx: Context, segments_BL: Tensor | None = None) -> tuple[Tensor, Context]:
        """Return the vectors of tokens, and what the layers after them may know."""
        return self.model.embedding(tokens_BL, ctx, segments_BL), self.model.embedding.inside(tokens_BL, ctx)


class EncoderGraph(Graph):
    """Tokens in; states and what the head says of them out. `keep` is true at real tokens, if it can be told."""

    def __init__(self, model: Transformer, padded: bool, segmented: bool) -> None:
        super().__init__(model)
        self.inputs = ["tokens", *(["keep"] if padded else []), *(["segments"] if segmented else [])]
        self.outputs = ["hidden", "logits"]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, given, strict=True))
        keep_BL, segments_BL = named.get("keep"), named.get("segments")
        padding = None if keep_BL is None else Padding(keep_BL, right=True)
        annotations = () if segments_BL is None else (Segments(segments_BL),)
        ctx = Context(padding=padding, annotations=annotations, side_losses={})
        x_BLD, inner = self.embedded(named["tokens"], ctx, segments_BL)
        hidden_BLD = self.model.encoder(x_BLD, inner, None)
        keep_BL = None if inner.padding is None else inner.padding.keep_BL
        return hidden_BLD, self.model.head.answer(hidden_BLD, keep_BL)


class DecoderGraph(Graph):
    """New tokens and a state in; scores and the state after them out.

    `tokens` [B, L] have the positions `start` [B], `start` + 1, …; `seen` [B, P] holds those of the P cached keys,
    unless the fused operator keeps them at their positions; scores are made `at` [N] of the new tokens. A decoder with
    cross-attention also gets the padding mask of its encoder.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        layers, crossed = self.layers(1), model.encoder is not None
        self.slots, self.fused = layers.slots(), has_fused(model)
        self.inputs = ["tokens", "start", *([] if self.fused else ["seen"]), "at"]
        self.inputs += [*(["memory_keep"] if crossed else []), *(["memory"] if layers.look else [])]
        self.inputs += [f"state.{slot.name}" for slot in self.slots]
        self.outputs = ["logits", *(f"next.{slot.name}" for slot in self.slots if not slot.fixed)]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, given, strict=True))
        tokens_BL, start_B = named["tokens"], named["start"]
        layers = self.layers(tokens_BL.shape[0])
        slots = layers.slots()
        for slot in slots:
            slot.put(named[f"state.{slot.name}"])
        pos_BL, n_past = start_B[:, None] + torch.arange(tokens_BL.shape[1]), 0
        if self.fused:
            layers.places.reach = Reach.of(start_B, tokens_BL.shape[1])
        else:
            layers.places.k_pos_BM, n_past = torch.cat([named["seen"], pos_BL], 1), named["seen"].shape[1]
        memory = None
        if "memory_keep" in named:
            # keys and values of the memory are in the state; only those who look by themselves read it
            memory = EncoderOutput(named.get("memory", torch.empty(0)), named["memory_keep"])
        ctx = Context(start=n_past, pos_BL=pos_BL, encoder_output=memory, side_losses={})
        x_BLD, inner = self.embedded(tokens_BL, ctx)
        hidden_BLD = self.model.decoder(x_BLD, inner, layers.layers)
        logits_BNV = self.model.head.logits(hidden_BLD.index_select(1, named["at"]))
        return logits_BNV, *(slot.value() for slot in slots if not slot.fixed)

    def layers(self, batch_size: int) -> Layers:
        """Return the states of an empty decoder."""
        return Layers(self.model.decoder, batch_size, self.model.spec.max_len)


class MemoryGraph(Graph):
    """A source in; what a decoder keeps of it out: keys and values of every layer, and where recurrent layers begin."""

    def __init__(self, model: Transformer, padded: bool) -> None:
        super().__init__(model)
        layers = Layers(model.decoder, 1, model.spec.max_len)
        self.inputs = ["source", *(["source_keep"] if padded else [])]
        self.outputs = ["memory_keep", *(["memory"] if layers.look else [])]
        self.outputs += [f"state.{slot.name}" for slot in layers.slots() if slot.begins]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, given, strict=True))
        source_BM, keep_BM = named["source"], named.get("source_keep")
        padding = None if keep_BM is None else Padding(keep_BM, right=True)
        x_BMD, inner = self.embedded(source_BM, Context(padding=padding, side_losses={}))
        memory: EncoderOutput = self.model.bridge(self.model.encoder, x_BMD, inner)
        layers = Layers(self.model.decoder, source_BM.shape[0], self.model.spec.max_len)
        states_BMD = memory.states_BMD
        self._begin(layers, memory)
        keep_BM = torch.ones_like(states_BMD[..., 0], dtype=torch.bool) if memory.keep_BM is None else memory.keep_BM
        found = [slot.value() for slot in layers.slots() if slot.begins]
        return keep_BM, *([states_BMD] if layers.look else []), *found

    def _begin(self, layers: Layers, memory: EncoderOutput) -> None:
        """Let every part read the memory. What it says of a token that was not asked about is left out of the graph."""
        ctx, decoder = Context(encoder_output=memory, side_losses={}), self.model.decoder
        x_B1D = memory.states_BMD.new_zeros(memory.states_BMD.shape[0], 1, self.model.spec.d_model)
        for n, i in decoder.runs():
            inner = ctx.layer(n)
            for part, state in zip(decoder.blocks[i].parts, layers.layers[n], strict=True):
                _read(part, state, x_B1D, inner)


def _read(part: Any, state: Any, x_B1D: Tensor, ctx: Context) -> None:
    assert ctx.encoder_output is not None
    if isinstance(state, Begun):
        state.keys_BMD = part.score.keys(ctx.encoder_output.states_BMD)
        if hasattr(part, "begin"):
            state.values = part.begin(x_B1D, ctx.encoder_output)
    elif isinstance(state, Carried):
        state.begin(ctx)
    elif looks(state):
        part(x_B1D, ctx, state)
