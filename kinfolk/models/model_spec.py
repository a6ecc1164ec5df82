"""The spec of a whole model: widths, embedding, encoder or decoder stacks, bridge, head and initialisation."""

import dataclasses
from typing import Literal

from kinfolk.core.bounds import PositiveInt, Rate
from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec
from kinfolk.layers.embeddings.embedding import Embedding
from kinfolk.layers.heads.head import Head
from kinfolk.layers.init import Init
from kinfolk.layers.module import Dims
from kinfolk.models.bridge import Bridge, LastLayer
from kinfolk.models.depth.depth import Depth
from kinfolk.models.prefix import refuse_one_way


class Model(Spec):
    """Spec of a Transformer: the widths that its parts share, and the parts.

    `prompt`: the prefix that a decoder continues is read from left to right, or "bidirectional", as a prefix language
    model was trained to (Liu et al. 2018; Raffel et al. 2020, section 3.2.1).
    """

    d_model: PositiveInt
    vocab_size: PositiveInt
    max_len: PositiveInt
    dropout: Rate = 0.0
    embedding: Embedding
    encoder: Depth | None = None
    decoder: Depth | None = None
    bridge: Bridge = LastLayer()
    head: Head
    init: Init
    prompt: Literal["causal", "bidirectional"] = "causal"

    def __post_init__(self) -> None:
        if self.encoder is None and self.decoder is None:
            raise SpecError("a model needs an encoder, a decoder, or both")
        self.bridge.check(self.encoder, self.decoder)
        if self.prompt == "bidirectional":
            refuse_one_way(self.topology, self.decoder)

    @property
    def topology(self) -> str:
        """ "encoder", "decoder" or "encoder-decoder"."""
        if self.encoder is None:
            return "decoder"
        return "encoder" if self.decoder is None else "encoder-decoder"

    @property
    def dims(self) -> Dims:
        """What children are built with."""
        branches = [stack.n_sublayers for stack in (self.encoder, self.decoder) if stack is not None]
        return Dims(self.d_model, self.vocab_size, self.max_len, self.dropout, max(branches), n_branches=sum(branches))

    @property
    def head_dims(self) -> Dims:
        """What the head is built with: the width is that of the states it gets."""
        last = self.decoder or self.encoder
        assert last is not None
        return dataclasses.replace(self.dims, d_model=self.d_model * last.widens)
