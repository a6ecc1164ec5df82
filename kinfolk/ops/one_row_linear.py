"""A linear layer of one row, y = b + Σ_i x_i W[:, i], as gemv or as a bag of columns: decoding at the speed of memory.

A token of decoding multiplies one row by every weight matrix, so its time is that of reading them. `F.linear` calls
BLAS for a product of matrices (gemm), which reads a matrix that the last cache holds at 80 % of the speed of the
product of a matrix and a vector (gemv). On AMD's processors both reach 30 to 70 % of the bandwidth, with
one thread however many there are. The same sum is that of a bag of embeddings, the columns, weighted by x. PyTorch's
kernel for bags (FBGEMM) prefetches the next columns and reaches 60 to 90 % there, as long as its sums fit the
registers: so columns are cut into pieces of as many numbers as they hold (`WIDTHS`).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.core.machine import AMD, cpu_field
from kinfolk.core.shapes import shaped
from kinfolk.ops.linear_map import linear_map, wide_products

WIDTHS = {"AVX512": (96, 448), "AVX2": (48, 112)}
"""Outputs that are summed at once, by instructions: at most 28 of 32 registers of 16 numbers, or 14 of 16 of 8.

With fewer than the least, single columns are too short to read.
"""
LINE = 32
"""Numbers in 128 bytes: two lines of the cache, which are fetched together."""
Copy = Callable[[Tensor], Tensor]
"""Makes a contiguous copy of a matrix, wherever it likes to keep it."""


class ColumnPieces:
    """A matrix [out, in] cut into groups of outputs, each stored by columns, with the bias as one more column.

    Outputs from `n_out` on are room between columns. All that a product needs beside x is kept: making it anew was a
    tenth of a token's time.
    """

    def __init__(self, pieces_GIW: Tensor, has_bias: bool, n_out: int | None = None) -> None:
        self.pieces_GIW, self.has_bias = pieces_GIW, has_bias
        self.n_groups, self.n_columns, self.wide = pieces_GIW.shape
        self.n_in, self.n_rows = self.n_columns - has_bias, self.n_groups * self.wide
        self.n_out = self.n_rows if n_out is None else n_out
        self._columns_nW = pieces_GIW.view(-1, self.wide)
        # the weight of the bias
        self._one = (_one(pieces_GIW.dtype),) if has_bias else ()
        # one tuple, replaced whole: threads of a server may differ in theirs
        self._bags = 0, *_bags(self.n_groups, self.n_columns, 1), 1

    @property
    def matrix(self) -> Tensor:
        """The matrix as it was."""
        return self.pieces_GIW[:, : self.n_in].mT.flatten(0, 1)[: self.n_out]

    @property
    def bias(self) -> Tensor | None:
        """What is added."""
        return self.pieces_GIW[:, -1].flatten() if self.has_bias else None

    def times(self, x: Tensor) -> Tensor:
        """Multiply the rows of x."""
        if x.numel() != self.n_in or not x.is_contiguous():
            y = _several_rows(x, self.pieces_GIW[:, : self.n_in])[..., : self.n_out]
            return y if (bias := self.bias) is None else y.add_(bias)
        n_threads, index, begins, parts = self._bags
        if n_threads != (now := torch.get_num_threads()):
            parts = max(1, now // self.n_groups)
            index, begins = _bags(self.n_groups, self.n_columns, parts)
            self._bags = now, index, begins, parts
        weights = x.view(self.n_in)
        if self.n_columns * self.n_groups > self.n_in:
            weights = torch.cat((weights, *self._one) * self.n_groups)
        y = torch.embedding_bag(self._columns_nW, index, begins, False, 0, False, weights, False)[0]
        if parts > 1:
            y = y.view(self.n_groups, parts, self.wide).sum(1)
        y = y.view(*x.shape[:-1], self.n_rows)
        return y if self.n_out == self.n_rows else y.narrow(-1, 0, self.n_out)


class WholeMatrix(NamedTuple):
    """A matrix [out, in] as it lies in memory, by rows or by columns, and the bias."""

    matrix: Tensor
    bias: Tensor | None

    def times(self, x: Tensor) -> Tensor:
        """Multiply the rows of x: one as a vector, several as a matrix."""
        weight, bias = self
        if x.numel() != weight.shape[1]:
            return linear_map(x, weight, bias)
        row_I = x.reshape(-1)
        y = torch.mv(weight, row_I) if bias is None else torch.addmv(bias, weight, row_I)
        return y.view(*x.shape[:-1], -1)


@functools.cache
def reads_columns_fast() -> bool:
    """Tell whether bags are read faster than by BLAS here: on AMD's processors.

    On Intel's BLAS reads columns at 0.9 of the bandwidth (with AVX-512; bags 0.7 to 0.8). Asked of the processor, never
    measured.
    """
    return torch.backends.cpu.get_cpu_capability() in WIDTHS and cpu_field("vendor_id") == AMD


def width(n_out: int) -> int | None:
    """Return how many outputs are summed at once of a matrix with `n_out`, or nothing if it cannot be cut well."""
    least, most = WIDTHS.get(torch.backends.cpu.get_cpu_capability(), WIDTHS["AVX2"])
    return next((w for w in range(min(most, n_out), least - 1, -1) if n_out % w == 0), None)


def columns(weight_OI: Tensor, bias_O: Tensor | None, copy: Copy = Tensor.contiguous) -> ColumnPieces | None:
    """Return a matrix in pieces of columns, or nothing if its outputs cannot be cut well. Cost: one copy."""
    wide = width(len(weight_OI))
    if wide is None:
        return None
    whole = weight_OI if bias_O is None else torch.cat([weight_OI, bias_O[:, None]], 1)
    return ColumnPieces(copy(whole.unflatten(0, (-1, wide)).mT), bias_O is not None)


def as_stored(weight_OI: Tensor, bias_O: Tensor | None) -> ColumnPieces | WholeMatrix:
    """Return a matrix without a copy; whole columns are a bag where that is read faster than by gemv.

    So it is where units are 512 bits wide (Zen 5), and with AVX2 where columns are `apart`: a table of 50,257 x 768 is
    read at 38 and 36 instead of 28 GB/s, and reading alone reaches 41 to 44.
    """
    if bias_O is None and weight_OI.dtype == torch.float32 and weight_OI.stride(0) == 1:
        (n_out, n_in), step = weight_OI.shape, weight_OI.stride(1)
        expected = apart(n_out) if keeps_columns_apart() else n_out if wide_products() else 0
        ends = (weight_OI.storage_offset() + n_in * step) * weight_OI.element_size()
        if step == expected and ends <= weight_OI.untyped_storage().nbytes():
            return ColumnPieces(weight_OI.as_strided((1, n_in, step), (n_in * step, step, 1)), False, n_out)
    return WholeMatrix(weight_OI, bias_O)


def by_columns(weight_OI: Tensor, copy: Copy = Tensor.contiguous) -> Tensor:
    """Return a matrix stored by columns if it has at least as many outputs as inputs, else as it is."""
    return copy(weight_OI.t()).t() if weight_OI.shape[0] >= weight_OI.shape[1] else weight_OI


def table_by_columns(weight_OI: Tensor, copy: Copy = Tensor.contiguous) -> Tensor:
    """Return the matrix of an output layer by columns, as a row is multiplied by it fastest. Cost: up to two copies."""
    if not keeps_columns_apart():
        return by_columns(weight_OI, copy)
    n_out = len(weight_OI)
    return copy(F.pad(weight_OI.t(), (0, apart(n_out) - n_out)))[:, :n_out].t()


@functools.cache
def keeps_columns_apart() -> bool:
    """Tell whether a bag of whole columns needs room between them: with AVX2."""
    return reads_columns_fast() and torch.backends.cpu.get_cpu_capability() == "AVX2"


def apart(n_out: int) -> int:
    """Return how far columns of `n_out` numbers should lie apart: an odd number of 128 bytes.

    Where they begin within a line of the cache, or at multiples of a large power of two, AVX2 reads them at 25 to 31
    instead of 35 GB/s.
    """
    return LINE * (-(-n_out // LINE) | 1)


@shaped()
def one_row_linear(x: Tensor, matrix: ColumnPieces | WholeMatrix) -> Tensor:
    r"""Return $y_o = b_o + \sum_i w_{oi} x_i$ for x of any number of rows; fast for one row of single precision.

    Sums over pieces run over the inputs in their order, in as many parts as there are threads to spare. Several rows
    are ordinary products. Cost: one pass over the matrix. Reference: `kinfolk.ops.naive.one_row_linear`.
    """
    return matrix.times(x)


def _several_rows(x: Tensor, pieces_GIW: Tensor) -> Tensor:
    if torch.is_grad_enabled() or wide_products():
        return torch.cat([linear_map(x, piece.mT) for piece in pieces_GIW], -1)
    # written where they belong: a copy of all outputs is a tenth of a long prompt's time
    y_nGW = x.new_empty(x.shape[:-1].numel(), len(pieces_GIW), pieces_GIW.shape[-1])
    for g, piece in enumerate(pieces_GIW):
        torch.mm(x.flatten(0, -2), piece, out=y_nGW[:, g])
    return y_nGW.view(*x.shape[:-1], y_nGW.shape[1:].numel())


@functools.cache
def _one(dtype: torch.dtype) -> Tensor:
    """Return the weight of the bias."""
    with torch.inference_mode(False):
        return torch.ones(1, dtype=dtype)


@functools.lru_cache(maxsize=256)
def _bags(n_groups: int, n_in: int, parts: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of all columns, and where each part of a group begins; shared by all matrices of a shape."""
    # ordinary tensors: those made inside inference mode could not be used outside
    with torch.inference_mode(False):
        begins = [g * n_in + n_in * i // parts for g in range(n_groups) for i in range(parts)]
        return torch.arange(n_groups * n_in), torch.tensor(begins)
