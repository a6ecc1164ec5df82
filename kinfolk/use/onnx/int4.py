r"""Weights of matrices as 4-bit integers in blocks: weight-only quantisation, with the scale of each block beside it.

A block is 32, 64 or 128 weights of one column, one after the other: $s\,n$ with $-8 \le n \le 7$, and $s$ such that the
weight furthest from zero is exactly $-8 s$. The operator may round activations to 8 bits, each block of them with
a scale of its own: products of integers are faster than restored weights.
"""

from typing import Any, ClassVar

import numpy as np

from kinfolk.decoding.engines.onnx.session import Array
from kinfolk.use.onnx.quantizer import Quantizer

BITS, LOWEST, HIGHEST = 4, -8, 7
SIZES = (128, 64, 32)
"""Of blocks: the larger, the faster and the less exact."""
INT8_ACTIVATIONS = 4
"""The operator's word for them, its `accuracy_level`."""


def block_size(n_in: int) -> int:
    """Return the largest size that divides the inputs of a matrix; of a remainder, the smallest pads the least."""
    return next((size for size in SIZES if n_in % size == 0), SIZES[-1])


def blocks(weight: Array, size: int) -> tuple[Array, Array]:
    """Return a matrix [in, out] as integers [out, blocks, size] and scales [out, blocks]; behind its end are zeros."""
    n_in, n_out = weight.shape
    padded = np.zeros((n_out, -(-n_in // size) * size), np.float32)
    padded[:, :n_in] = weight.T
    values = padded.reshape(n_out, -1, size)
    furthest = np.take_along_axis(values, np.abs(values).argmax(-1)[..., None], -1)
    scale = np.where(furthest == 0, np.float32(1), furthest / LOWEST)
    # a weight as far on the other side of zero would be +8
    whole = np.clip(np.rint(values / scale), LOWEST, HIGHEST).astype(np.int8)
    return whole, scale[..., 0]


def packed(whole: Array) -> Array:
    """Return two integers in a byte, the first in its lower half, as unsigned ones whose zero is 8."""
    unsigned = (whole - LOWEST).astype(np.uint8)
    return unsigned[..., 0::2] | (unsigned[..., 1::2] << BITS)


class Int4Quantizer(Quantizer):
    """Products as `MatMulNBits`, an operator of onnxruntime's own that reads blocks."""

    suffix: ClassVar[str] = "int4"

    def integers(self, weight: Array) -> tuple[Array, Array, Array]:
        """Return packed integers, the scales of blocks in a row, and their products."""
        whole, scale = blocks(weight, block_size(len(weight)))
        restored = (whole * scale[..., None]).reshape(len(whole), -1)[:, : len(weight)].T
        return packed(whole), scale.reshape(-1), restored

    def product(self, given: str, names: tuple[str, str], shape: tuple[int, int], bias: str, result: str) -> Any:
        """Return `MatMulNBits`."""
        from onnx import helper

        # between scales and bias: zeros of blocks, and an order of inputs
        inputs = [given, *names, "", "", bias] if bias else [given, *names]
        sizes = {"K": shape[0], "N": shape[1], "bits": BITS, "block_size": block_size(shape[0])}
        sizes["accuracy_level"] = INT8_ACTIVATIONS
        return helper.make_node("MatMulNBits", inputs, [result], domain="com.microsoft", **sizes)
