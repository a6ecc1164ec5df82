"""Memory layout of weight matrices for decoding: columns, rows or oneDNN's blocks, by shape and number of rows.

Decoding multiplies one row, or a few, by every weight matrix, so it is bound by reading memory. A matrix [out, in]
stored by rows is read as dot products, one stored by columns as a sum of scaled columns (gemv). On x86 one row is
multiplied 1.4 to 2.5 times as fast by columns where there are more outputs than inputs. Several rows are a small matrix
product, for which oneDNN's blocks are read 1.1 (AVX2) to 2 times (AVX-512) as fast as either; one row reads columns
1.3 to 1.7 times as fast as blocks.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.decoding.engines.direct_calls import call_directly
from kinfolk.layers.heads.head import HeadModule
from kinfolk.layers.linear_maps import LinearMap, exchange
from kinfolk.layers.module import Linear, borrow
from kinfolk.layers.part import PartModule
from kinfolk.models.model import Transformer
from kinfolk.ops.activated_linear import Activation, activate
from kinfolk.ops.gated_linear import gate

LARGE = 1 << 21
"""Weights of a narrow matrix from which blocks are worth their longer call (about 10 microseconds) for one row too."""
TWICE = 1 << 26
"""A model of up to this many weights keeps them in both forms: rows leave a batch, down to the last one."""


class PackedMap(LinearMap):
    """A linear map whose matrix is stored in the blocks that oneDNN reads for products of about `rows` rows.

    With `keep` a single row is multiplied by the matrix as it was.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int, keep: bool = False) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # an opaque tensor, so neither a parameter nor a buffer
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(weight.data.contiguous(), rows)
        self.offset = bias
        self.kept = weight if keep else None

    @property
    def weight(self) -> Tensor:
        dense: Tensor = self.blocks.to_dense() if self.kept is None else self.kept
        return dense

    @property
    def bias(self) -> Tensor | None:
        return self.offset

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape)

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is not None and x.numel() == self.in_features:
            return F.linear(x, self.kept, self.offset)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.blocks, self.offset, "none", [], "")
        return y

    def after(self, u_BLF: Tensor, activation: Activation) -> Tensor:
        return self.forward(activate(u_BLF, activation))

    def after_gate(self, u_BLf: Tensor, activation: Activation) -> Tensor:
        return self.forward(gate(u_BLf, activation))


MAPS = nn.Linear | PackedMap


@torch.no_grad()
def for_decoding(model: Transformer, rows: int = 1) -> Transformer:
    """Lay out the weights of a model that only decodes, `rows` sequences at once or fewer, and return it.

    Numbers stay; sums are rounded in another order, so outputs differ in their last bits. With one row all parameters
    stay where they are but the largest narrow ones. With more, maps of attention and feed-forwards become blocks,
    beside the matrices where the model is small, and so does the output layer, beside the table that it may share.
    CPU and float32 only. Modules call `forward` directly from then on. Cost: one copy of a matrix at a time.
    """
    if all(_is_plain(p) for p in model.parameters()):
        if blocks_available():
            _pack(model, rows)
        _columns(model)
    call_directly(model)
    return model


@functools.cache
def blocks_available() -> bool:
    """Tell whether this build of PyTorch has oneDNN's linear layer with reordered weights."""
    has = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return has and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def _pack(model: Transformer, rows: int) -> None:
    """Replace maps that their owners only call."""
    keep = rows > 1 and model.n_params <= TWICE
    for part in model.modules():
        if isinstance(part, PartModule):
            maps = {name: getattr(part, name) for name in vars(type(part)).get("called_maps", ())}
            paying = {name: m for name, m in maps.items() if type(m) is Linear and _pays(m, rows)}
            exchange(part, {name: PackedMap(m.weight, m.bias, rows, keep) for name, m in paying.items()})
    head = model.head
    plain = type(head).logits is HeadModule.logits and type(head).weight is not HeadModule.weight
    if rows > 1 and plain and head.packed is None and isinstance(head.weight, nn.Parameter):
        borrow(head, "packed", PackedMap(head.weight, head.bias, rows, keep=True))


def _pays(linear: Linear, rows: int) -> bool:
    narrow = linear.out_features < linear.in_features
    return rows > 1 or (narrow and linear.weight.numel() >= LARGE)


def _columns(model: Transformer) -> None:
    """Store matrices by columns that have at least as many outputs as inputs; tied ones stay tied."""
    # heads without a single output matrix (adaptive softmax) have linear maps, which are modules of their own
    heads = [model.head.weight] if type(model.head).weight is not HeadModule.weight else []
    maps = [m.kept if isinstance(m, PackedMap) else m.weight for m in model.modules() if isinstance(m, MAPS)]
    for weight in {id(w): w for w in (*maps, *heads) if isinstance(w, nn.Parameter)}.values():
        if weight.dim() == 2 and weight.shape[0] >= weight.shape[1]:
            weight.data = weight.data.t().contiguous().t()


def _is_plain(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32
