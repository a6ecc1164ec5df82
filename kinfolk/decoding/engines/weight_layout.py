"""Memory layout of weight matrices for decoding: columns, rows or oneDNN's blocks, by shape and number of rows.

Decoding multiplies one row, or a few, by every weight matrix, so it is bound by reading memory. A matrix [out, in]
stored by rows is read as dot products, one stored by columns as a sum of scaled columns (gemv). On x86 one row is
multiplied 1.2 to 2.5 times as fast by columns where there are more outputs than inputs. Several rows are a small matrix
product, for which oneDNN's blocks are read 1.1 (AVX2) to 2 times (AVX-512) as fast as either; one row reads columns
1.3 to 1.7 times as fast as blocks. A narrow matrix (768 x 3,072) and one row: rows 1.3 times as fast as blocks with
AVX2, blocks faster with AVX-512.
"""

import contextlib
import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.decoding.engines.direct_calls import call_directly, direct_calls
from kinfolk.decoding.engines.short_calls import kind_of
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
LONG = 48
"""New tokens from which a model in memory is laid out for one call: a layout costs what 15 to 20 tokens gain by it."""


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
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.blocks, self.offset, "none", [], "")
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


@contextlib.contextmanager
def laid_out(model: Transformer, rows: int, n_new: int) -> Iterator[None]:
    """Call the modules of a model directly inside, with its weights laid out if `n_new` tokens pay for it.

    Copies take the places of weights and maps in the attributes of modules; parameters stay, and afterwards everything
    is as before. A large model has no room for copies and is not laid out.
    """
    with direct_calls(model) as changed:
        small = n_new >= LONG and model.n_params <= TWICE
        if changed and small and torch.backends.mkldnn.is_available() and all(map(_is_plain, model.parameters())):
            if rows == 1:
                _column_copies(model, changed)
            elif blocks_available():
                _block_copies(model, changed, rows)
        try:
            yield
        finally:
            if model.head in changed:
                vars(model.head).pop("packed", None)


@functools.cache
def blocks_available() -> bool:
    """Tell whether this build of PyTorch has oneDNN's linear layer with reordered weights."""
    has = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return has and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def _pack(model: Transformer, rows: int) -> None:
    """Replace maps that their owners only call."""
    keep = rows > 1 and model.n_params <= TWICE
    for part in model.modules():
        maps = {name: m for name, m in _called(part).items() if _pays(m, rows)}
        exchange(part, {name: PackedMap(m.weight, m.bias, rows, keep) for name, m in maps.items()})
    if rows > 1 and _has_plain_output(model.head) and model.head.packed is None:
        borrow(model.head, "packed", PackedMap(model.head.weight, model.head.bias, rows, keep=True))


def _block_copies(model: Transformer, changed: list[nn.Module], rows: int) -> None:
    """Let modules see their maps in blocks; a single row is multiplied by the matrix as it is."""
    for part in changed:
        for name, linear in _called(part).items():
            vars(part)[name] = PackedMap(linear.weight, linear.bias, rows, keep=True)
            call_directly(vars(part)[name])
    if model.head in changed and _has_plain_output(model.head):
        vars(model.head)["packed"] = PackedMap(model.head.weight, model.head.bias, rows, keep=True)
        call_directly(vars(model.head)["packed"])


def _column_copies(model: Transformer, changed: list[nn.Module]) -> None:
    """Let modules see copies by columns of the matrices that are read faster so."""
    copies = {id(weight): weight.data.t().contiguous().t() for weight in _wide(model)}
    for module in changed:
        for name, weight in module._parameters.items():
            if id(weight) in copies:
                vars(module)[name] = copies[id(weight)]


def _called(part: nn.Module) -> dict[str, Linear]:
    """Return the plain maps that a part only calls, by name."""
    names = vars(kind_of(part)).get("called_maps", ()) if isinstance(part, PartModule) else ()
    return {name: m for name in names if kind_of(m := getattr(part, name)) is Linear}


def _has_plain_output(head: HeadModule) -> bool:
    """Tell whether logits are one product with a parameter."""
    plain = type(head).logits is HeadModule.logits and type(head).weight is not HeadModule.weight
    return plain and isinstance(head.weight, nn.Parameter)


def _pays(linear: Linear, rows: int) -> bool:
    narrow = linear.out_features < linear.in_features and linear.weight.numel() >= LARGE
    return rows > 1 or (narrow and torch.backends.cpu.get_cpu_capability() == "AVX512")


def _columns(model: Transformer) -> None:
    """Store wide matrices by columns; tied ones stay tied."""
    for weight in _wide(model):
        weight.data = weight.data.t().contiguous().t()


def _wide(model: Transformer) -> list[nn.Parameter]:
    """Return the matrices of maps and of the output layer that have at least as many outputs as inputs, each once."""
    # heads without a single output matrix (adaptive softmax) have linear maps, which are modules of their own
    heads = [model.head.weight] if type(model.head).weight is not HeadModule.weight else []
    maps = [m.kept if isinstance(m, PackedMap) else m.weight for m in model.modules() if isinstance(m, MAPS)]
    matrices = {id(w): w for w in (*maps, *heads) if isinstance(w, nn.Parameter)}
    return [w for w in matrices.values() if w.dim() == 2 and w.shape[0] >= w.shape[1]]


def _is_plain(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32
