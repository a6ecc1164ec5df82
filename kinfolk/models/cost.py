"""The cost of a whole model from its spec alone: parameters, FLOPs and activation memory, in closed form."""

import dataclasses

from kinfolk.core.cost import Cost, Shape
from kinfolk.models.model_spec import Model


@dataclasses.dataclass(frozen=True)
class ModelCost:
    """Parameters, FLOPs and activation memory at one length. FLOPs count a multiplication and an addition as two.

    core_params: parameters without the embedding and the output layer.
    """

    params: int
    flops_per_token: float  # forward pass
    activation_bytes: float  # kept for the backward pass, per token of the batch, in float32
    core_params: int = 0

    @property
    def train_flops_per_token(self) -> float:
        """Forward and backward: the backward pass multiplies twice for each product of the forward pass."""
        return 3 * self.flops_per_token


def cost(model: Model, length: int, source_length: int | None = None, scored: float = 1.0) -> ModelCost:
    """Add up the parts of a model over sequences of `length` tokens.

    A token is one of the scored sequence; an encoder-decoder's encoder runs on `source_length` (default: as many) more.
    `scored` is the share of positions that reach the output layer.
    """
    dims = model.dims
    n_source = length if source_length is None else source_length
    total = embedding = model.embedding.cost(dims)
    if model.decoder is None:
        assert model.encoder is not None
        n = model.embedding.places(length)
        total += model.encoder.cost(dims, Shape(n)).scaled(n / length)
    else:
        n = model.embedding.source_places(n_source)
        n_seen = n if model.encoder is None else model.bridge.seen(model.encoder, n)
        total += model.decoder.cost(dims, Shape(length, n_seen))
        if model.encoder is not None:
            inside = model.encoder.cost(dims, Shape(n)) + model.bridge.cost(dims, model.encoder, model.decoder)
            total += inside.scaled(n / length) + model.embedding.cost(dims).again().scaled(n_source / length)
    head = model.head.cost(dataclasses.replace(model.head_dims, d_table=model.embedding.d_table(dims)))
    total += Cost(head.params, head.flops * scored, head.kept * scored)
    core = total.params - embedding.params - head.params
    return ModelCost(total.params, total.flops, 4.0 * total.kept, core)
