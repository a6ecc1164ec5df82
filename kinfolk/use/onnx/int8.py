r"""Weights of matrices as 8-bit integers, activations quantised as they come: dynamic quantisation.

A column of weights is $s\,n$ with $n$ whole and $|n| \le 63$: seven bits, because processors without an instruction of
their own for it add two products of bytes in sixteen bits, where eight would overflow.
"""

from typing import Any, ClassVar

from kinfolk.decoding.engines.onnx.session import Array
from kinfolk.use.onnx.quantizer import Quantizer, columns

LEVELS = 63


class Int8Quantizer(Quantizer):
    """Products as one operator that also quantises what is multiplied, with a scale and a zero for all of it."""

    suffix: ClassVar[str] = "int8"

    def integers(self, weight: Array) -> tuple[Array, Array, Array]:
        """Return integers, a scale for each column, and their products."""
        whole, scale = columns(weight, LEVELS)
        return whole, scale, whole * scale

    def product(self, given: str, names: tuple[str, str], shape: tuple[int, int], bias: str, result: str) -> Any:
        """Return `DynamicQuantizeMatMul`."""
        from onnx import helper

        inputs = [given, *names, "", bias] if bias else [given, *names]
        return helper.make_node("DynamicQuantizeMatMul", inputs, [result], domain="com.microsoft")
