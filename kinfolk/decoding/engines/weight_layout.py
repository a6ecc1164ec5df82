"""Memory layout of weight matrices for decoding: columns, rows or oneDNN's blocks, by shape and number of rows.

Decoding multiplies one row, or a few, by every weight matrix, so it is bound by reading memory. A matrix [out, in]
stored by rows is read as dot products, one stored by columns as a sum of scaled columns. On AMD's processors one row
is multiplied fastest by pieces of columns (`ops/one_row_linear`), elsewhere as a vector (gemv), by columns where there
are more outputs than inputs (1.1 to 2.5 times as fast as by rows), both in huge pages. Several rows are a small matrix
product, for which oneDNN's blocks are read 1.1 (AVX2) to 3 times (AVX-512) as fast as either. Weights in bf16 are read
in blocks, by one row too, where the processor multiplies bf16: 2.5 times as fast as by rows, and half the bytes.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.errors import SpecError
from kinfolk.core.huge_pages import HugePages, room
from kinfolk.decoding.engines.direct_calls import call_directly, direct_calls
from kinfolk.decoding.engines.short_calls import kind_of
from kinfolk.layers.heads.head import HeadModule
from kinfolk.layers.linear_maps import LinearMap, exchange
from kinfolk.layers.module import Linear, borrow
from kinfolk.layers.part import PartModule
from kinfolk.models.model import Transformer
from kinfolk.ops.activated_linear import ACTIVATIONS, Activation, activate
from kinfolk.ops.gated_linear import gate
from kinfolk.ops.one_row_linear import (
    ColumnPieces,
    Copy,
    WholeMatrix,
    apart,
    as_stored,
    by_columns,
    columns,
    one_row_linear,
    reads_columns_fast,
    table_by_columns,
)

TWICE = 1 << 26
"""A model of up to this many weights keeps them in both forms: rows leave a batch, down to the last one."""
LONG = 48
"""New tokens from which a model in memory is laid out for one call: a layout costs what 15 to 20 tokens gain by it."""


Product = Callable[[Tensor], Tensor]


class LaidOutMap(LinearMap):
    """A linear map whose matrix lies as decoding reads it; a copy that is saved has the matrix as it was."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape

    def after(self, u_BLF: Tensor, activation: Activation) -> Tensor:
        # one row: `activate` would first ask what pays for many
        one = u_BLF.numel() == self.in_features
        return self.forward(ACTIVATIONS[activation](u_BLF) if one else activate(u_BLF, activation))

    def after_gate(self, u_BLf: Tensor, activation: Activation) -> Tensor:
        return self.forward(gate(u_BLf, activation))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias


class OneRowMap(LaidOutMap):
    """A linear map for one row: pieces of columns, or a whole matrix; several rows can be multiplied by it too."""

    def __init__(self, weight: Tensor, stored: ColumnPieces | WholeMatrix) -> None:
        super().__init__(weight)
        # neither a parameter nor a buffer, as in the other layout
        self.stored = stored

    @property
    def weight(self) -> Tensor:
        return self.stored.matrix

    @property
    def bias(self) -> Tensor | None:
        return self.stored.bias

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape)

    def forward(self, x: Tensor) -> Tensor:
        return one_row_linear(x, self.stored)


class PackedMap(LaidOutMap):
    """A linear map whose matrix is stored in the blocks that oneDNN reads for products of about `rows` rows.

    A single row is multiplied by `one_row` where it is given.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int, one_row: Product | None = None) -> None:
        super().__init__(weight)
        # an opaque tensor, so neither a parameter nor a buffer
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(weight.data.contiguous(), rows)
        self.offset = None if bias is None else bias.data
        self.one_row = one_row

    @property
    def weight(self) -> Tensor:
        dense: Tensor = self.blocks.to_dense()
        return dense

    @property
    def bias(self) -> Tensor | None:
        return self.offset

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.blocks.dtype)

    def forward(self, x: Tensor) -> Tensor:
        if self.one_row is not None and x.numel() == self.in_features:
            return self.one_row(x)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.blocks, self.offset, "none", [], "")
        return y


class RoundedMap(PackedMap):
    """A linear map whose matrix is rounded to bf16 and stored in blocks, between states of single precision.

    Inputs are rounded too, sums are of single precision and rounded once, as in autocast.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        super().__init__(weight.bfloat16(), None if bias is None else bias.bfloat16(), rows)

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.bfloat16()).float()


@torch.no_grad()
def for_decoding(model: Transformer, rows: int = 1, bf16: bool = False) -> Transformer:
    """Lay out the weights of a model that only decodes, `rows` sequences at once or fewer, and return it.

    Numbers stay; sums are rounded in another order, so outputs differ in their last bits. Maps of attention and
    feed-forwards become columns, in pieces on AMD (one row), or blocks (several rows, or bf16), both where the model is
    small; so does the output layer of several rows, beside the table that it may share. Other wide matrices are stored
    by columns. CPU only. Modules call `forward` directly from then on. Cost: copies of the matrices of one part at a
    time.
    bf16: the matrices of these maps and of the output layer are rounded to bf16, all else stays; refused where the
    processor has no instructions for it.
    """
    formats = {p.dtype if p.device.type == "cpu" else None for p in model.parameters()}
    if bf16 and not (formats <= {torch.float32, torch.bfloat16} and blocks_available() and bf16_available()):
        raise SpecError(
            "engine 'torch-bf16': needs a processor with instructions for bf16 (AVX512_BF16 or AMX); use torch, or an "
            "export in int8 by onnx"
        )
    if formats == {torch.float32} and bf16:
        _pack(model, lambda m, other: RoundedMap(m.weight, m.bias, rows), keep=False)
    elif formats == {torch.float32}:
        if rows == 1:
            pages = HugePages(sum(_room(m) for part in model.modules() for m in _called(part).values()))
            for part in model.modules():
                exchange(part, {name: _one_row(m, pages.copy) for name, m in _called(part).items()})
        elif blocks_available():
            keep = model.n_params <= TWICE
            _pack(model, lambda m, other: PackedMap(m.weight, m.bias, rows, other), keep)
        # what is left: the maps above have their matrices in another form, or dropped them
        wide = _wide(model)
        pages = HugePages(sum(room(w.element_size() * w.shape[1] * apart(w.shape[0])) for w in wide))
        for weight in wide:
            weight.data = table_by_columns(weight.data, pages.copy)
        # only now: the table as it was before would stay beside it
        _one_row_output(model.head)
    elif formats == {torch.bfloat16} and blocks_available() and bf16_available():
        _pack(model, lambda m, other: PackedMap(m.weight, m.bias, rows), keep=False)
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


@functools.cache
def bf16_available() -> bool:
    """Tell whether the processor has instructions for products of bf16, which oneDNN otherwise emulates."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _pack(model: Transformer, packed: Callable[[Any, Product | None], PackedMap], keep: bool) -> None:
    """Replace maps that their owners only call, and the output layer.

    packed: makes a map in blocks from a plain one and the product of a single row, if that is done otherwise.
    keep: matrices stay beside their blocks, for single rows.
    """
    for part in model.modules():
        for name, m in _called(part).items():
            exchange(part, {name: packed(m, _one_row(m).forward if keep else None)})
    head = model.head
    if _has_plain_output(head) and head.packed is None:
        borrow(head, "packed", packed(head, None))


def _one_row_output(head: HeadModule) -> None:
    """Multiply single rows by the table that the output layer may share, beside its blocks if it has any."""
    if not _has_plain_output(head):
        return
    if head.packed is None:
        borrow(head, "packed", _as_stored(head))
    elif isinstance(head.packed, PackedMap):
        head.packed.one_row = _as_stored(head).forward


def _block_copies(model: Transformer, changed: list[nn.Module], rows: int) -> None:
    """Let modules see their maps in blocks; a single row is multiplied by the matrix as it is."""
    for part in changed:
        for name, m in _called(part).items():
            vars(part)[name] = PackedMap(m.weight, m.bias, rows, _as_stored(m).forward)
            call_directly(vars(part)[name])
    head = model.head
    if head in changed and _has_plain_output(head):
        vars(head)["packed"] = PackedMap(head.weight, head.bias, rows, _as_stored(head).forward)
        call_directly(vars(head)["packed"])


def _column_copies(model: Transformer, changed: list[nn.Module]) -> None:
    """Let modules see copies of their matrices by columns, in pieces or whole, where they are read faster so."""
    replaced: set[int] = set()
    for part in changed:
        for name, m in _called(part).items():
            replaced.add(id(m.weight))
            vars(part)[name] = _one_row(m)
            call_directly(vars(part)[name])
    copies = {id(w): table_by_columns(w) for w in _wide(model) if id(w) not in replaced}
    for module in changed:
        for name, weight in module._parameters.items():
            if id(weight) in copies:
                vars(module)[name] = copies[id(weight)]
    head = model.head
    if head in changed and _has_plain_output(head):
        vars(head)["packed"] = _as_stored(head)
        call_directly(vars(head)["packed"])


def _one_row(m: Any, copy: Copy = Tensor.contiguous) -> OneRowMap:
    """Return a plain map as one row reads it fastest."""
    weight, bias = m.weight.data, None if m.bias is None else m.bias.data
    pieces = columns(weight, bias, copy) if reads_columns_fast() else None
    return OneRowMap(weight, pieces or WholeMatrix(by_columns(weight, copy), bias))


def _room(m: Linear) -> int:
    """Return the bytes of a reserve that a map takes by columns, its bias among them."""
    return room(m.weight.element_size() * (m.weight.numel() + m.out_features))


def _as_stored(m: Any) -> OneRowMap:
    """Return a map or an output layer with its matrix as it is stored."""
    return OneRowMap(m.weight, as_stored(m.weight.data, None if m.bias is None else m.bias.data))


def _called(part: nn.Module) -> dict[str, Linear]:
    """Return the plain maps that a part only calls, by name."""
    names = vars(kind_of(part)).get("called_maps", ()) if isinstance(part, PartModule) else ()
    return {name: m for name in names if kind_of(m := getattr(part, name)) is Linear}


def _has_plain_output(head: HeadModule) -> bool:
    """Tell whether logits are one product with a parameter."""
    plain = type(head).logits is HeadModule.logits and type(head).weight is not HeadModule.weight
    return plain and isinstance(head.weight, nn.Parameter)


def _wide(model: Transformer) -> list[nn.Parameter]:
    """Return the matrices of maps and of the output layer that have at least as many outputs as inputs, each once."""
    # heads without a single output matrix (adaptive softmax) have linear maps, which are modules of their own
    heads = [model.head.weight] if type(model.head).weight is not HeadModule.weight else []
    maps = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    matrices = {id(w): w for w in (*maps, *heads) if isinstance(w, nn.Parameter)}
    return [w for w in matrices.values() if w.dim() == 2 and w.shape[0] >= w.shape[1]]


def _is_plain(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32
