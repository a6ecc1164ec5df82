"""Quantization of a graph: products by constant matrices and lookups in embedding tables, written with integers.

What a product by integers looks like differs by precision (`int8`, `int4`); finding the products does not, and tables
are of 8-bit integers with a scale for each row in both.
"""

import abc
from typing import Any, ClassVar

import numpy as np

from kinfolk.decoding.engines.onnx.session import Array

FEW = 1 << 10
"""A matrix of fewer weights is left alone: there is nothing to save."""
TABLE_LEVELS = 127


def columns(weight: Array, levels: int) -> tuple[Array, Array]:
    """Return integers and the scale of every column of a matrix [in, out]."""
    scale = np.maximum(np.abs(weight).max(0), 1e-12) / levels
    return np.rint(weight / scale).astype(np.int8), scale.astype(np.float32)


class Quantizer(abc.ABC):
    """Goes through the nodes of a graph, and leaves new constants in it.

    errors: of each matrix of a product, the norm of what rounding changed as a share of its norm.
    """

    suffix: ClassVar[str]

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.constants = {one.name: one for one in graph.initializer}
        self.turned = {n.output[0]: n.input[0] for n in graph.node if _turns(n) and n.input[0] in self.constants}
        self.users: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        self.results = {one.name for one in graph.output}
        self.done: set[int] = set()
        self.made: dict[str, tuple[str, str]] = {}
        self.errors: dict[str, float] = {}

    @classmethod
    def quantised(cls, proto: Any) -> tuple[Any, list[float]]:
        """Return a copy of a graph with integers in it, and the errors of its matrices."""
        import onnx

        out = onnx.ModelProto()
        out.CopyFrom(proto)
        quantizer = cls(out.graph)
        nodes = [made for node in out.graph.node for made in quantizer.replaced(node)]
        del out.graph.node[:]
        out.graph.node.extend(nodes)
        quantizer.forget_unused()
        if not any(domain.domain == "com.microsoft" for domain in out.opset_import):
            out.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        return out, list(quantizer.errors.values())

    @abc.abstractmethod
    def integers(self, weight: Array) -> tuple[Array, Array, Array]:
        """Return a matrix [in, out] as integers and scales that a product reads, and the matrix that they mean."""

    @abc.abstractmethod
    def product(self, given: str, names: tuple[str, str], shape: tuple[int, int], bias: str, result: str) -> Any:
        """Return the node of a product by integers, with the names of those and of their scales; bias "": none."""

    def replaced(self, node: Any) -> list[Any]:
        """Return what replaces a node."""
        if id(node) in self.done:
            return []
        if node.op_type == "MatMul":
            return self._product(node)
        if node.op_type == "Gemm":
            return self._gemm(node)
        if node.op_type == "Gather":
            return self._gathered(node)
        return [node]

    def forget_unused(self) -> None:
        """Drop nodes and constants that are not read any more."""
        read = {name for node in self.graph.node for name in node.input} | self.results
        nodes = [node for node in self.graph.node if any(name in read for name in node.output)]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        read = {name for node in nodes for name in node.input} | self.results
        kept = [one for one in self.graph.initializer if one.name in read]
        del self.graph.initializer[:]
        self.graph.initializer.extend(kept)

    def _product(self, node: Any) -> list[Any]:
        weight = self._matrix(node.input[1])
        if weight is None:
            return [node]
        bias, result = "", node.output[0]
        after = self.users.get(result, [])
        if len(after) == 1 and after[0].op_type == "Add" and result not in self.results:
            other = next(name for name in after[0].input if name != result)
            if other in self.constants and list(self.constants[other].dims) == [weight.shape[1]]:
                # the node of the sum is what comes out
                bias, result = other, after[0].output[0]
                self.done.add(id(after[0]))
        return [self._quantised(node.input[0], node.input[1], weight, bias, result)]

    def _gemm(self, node: Any) -> list[Any]:
        settings = {one.name: one for one in node.attribute}
        plain = all(settings[name].f == 1.0 for name in ("alpha", "beta") if name in settings)
        turned = "transB" in settings and bool(settings["transB"].i)
        weight = self._matrix(node.input[1])
        if weight is None or not plain or ("transA" in settings and settings["transA"].i):
            return [node]
        bias = node.input[2] if len(node.input) > 2 else ""
        key = f"{node.input[1]}.turned" if turned else node.input[1]
        return [self._quantised(node.input[0], key, weight.T if turned else weight, bias, node.output[0])]

    def _gathered(self, node: Any) -> list[Any]:
        """Look rows up in a table of integers, and give each its scale."""
        from onnx import TensorProto, helper

        table = self._matrix(node.input[0])
        if table is None or any(one.name == "axis" and one.i != 0 for one in node.attribute):
            return [node]
        whole, scale = columns(table.T, TABLE_LEVELS)
        names = self._constants(f"{node.input[0]}.rows", "int8", whole.T, scale[:, None])
        rows, scales, floats = (f"{node.output[0]}.{part}" for part in ("rows", "scales", "floats"))
        return [
            helper.make_node("Gather", [names[0], node.input[1]], [rows]),
            helper.make_node("Gather", [names[1], node.input[1]], [scales]),
            helper.make_node("Cast", [rows], [floats], to=TensorProto.FLOAT),
            helper.make_node("Mul", [floats, scales], [node.output[0]]),
        ]

    def _quantised(self, given: str, key: str, weight: Array, bias: str, result: str) -> Any:
        if key not in self.made:
            whole, scale, restored = self.integers(weight)
            self.errors[key] = float(np.linalg.norm(restored - weight) / max(float(np.linalg.norm(weight)), 1e-12))
            self._constants(key, self.suffix, whole, scale)
        n_in, n_out = weight.shape
        return self.product(given, self.made[key], (n_in, n_out), bias, result)

    def _matrix(self, name: str) -> Array | None:
        """Return the constant of a name if it is a matrix of floats worth the while."""
        from onnx import TensorProto, numpy_helper

        known = self.constants.get(self.turned.get(name, name))
        if known is None or len(known.dims) != 2 or known.data_type != TensorProto.FLOAT or np.prod(known.dims) < FEW:
            return None
        value: Array = numpy_helper.to_array(known)
        return value.T if name in self.turned else value

    def _constants(self, key: str, suffix: str, whole: Array, scale: Array) -> tuple[str, str]:
        """Put integers and their scales into the graph, once for all who read them."""
        from onnx import numpy_helper

        if key not in self.made:
            self.made[key] = (f"{key}.{suffix}", f"{key}.scale")
            for name, value in zip(self.made[key], (whole, scale), strict=True):
                self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return self.made[key]


def _turns(node: Any) -> bool:
    """Tell whether a node turns a matrix."""
    return node.op_type == "Transpose" and any(
        one.name == "perm" and list(one.ints) == [1, 0] for one in node.attribute
    )
