"""Values of the first layer, handed to the layers above it in one pass (value residual, RWKV-7)."""

import dataclasses
from typing import ClassVar

from torch import Tensor

from kinfolk.core.annotations import Annotation
from kinfolk.core.context import Context


class ValueHolder:
    """Holder of the first layer's values; not a dataclass, because hooks of FSDP copy those."""

    def __init__(self) -> None:
        self.values: Tensor | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class LayerValues(Annotation):
    """Annotation through which layers share the first layer's values; a stack makes one for each pass."""

    for_layers: ClassVar[bool] = True
    holder: ValueHolder = dataclasses.field(default_factory=ValueHolder)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {}


def leave_values(values: Tensor, ctx: Context) -> None:
    """Leave the values of the first layer; outside a stack that hands them on, do nothing."""
    record = ctx.annotation(LayerValues)
    if record is not None:
        record.holder.values = values


def first_values(ctx: Context) -> Tensor | None:
    """Return the values that the first layer left; None outside a stack that hands them on."""
    record = ctx.annotation(LayerValues)
    return None if record is None else record.holder.values
