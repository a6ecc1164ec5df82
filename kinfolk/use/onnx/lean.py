"""Fewer nodes for the same numbers: sums joined to the norms and activations after them.

A step of decoding reads every weight once and does little else, so that each node less is felt. onnxruntime joins such
nodes itself where a sum is read once; in a pre-norm layer it is read twice.
"""

from collections import Counter
from typing import Any

DOMAIN = "com.microsoft"


def lean(proto: Any) -> Any:
    """Return a copy of a graph with residual sums, biases, norms and GELUs joined.

    It says nothing any more about shapes between its inputs and outputs: onnxruntime finds them, also where a tracer
    took a size of its example for a constant.
    """
    import onnx

    out = onnx.ModelProto()
    out.CopyFrom(proto)
    joiner = _Joiner(out.graph)
    nodes = [joined for node in out.graph.node for joined in joiner.joined(node)]
    kept = [node for node in nodes if id(node) not in joiner.gone]
    del out.graph.node[:]
    out.graph.node.extend(_in_order(kept))
    del out.graph.value_info[:]
    for one in out.graph.output:
        one.type.tensor_type.ClearField("shape")
    if not any(one.domain == DOMAIN for one in out.opset_import):
        out.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return out


class _Joiner:
    def __init__(self, graph: Any) -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self.readers = Counter(name for node in graph.node for name in node.input)
        self.readers.update(one.name for one in graph.output)
        self.constants = {one.name: list(one.dims) for one in graph.initializer}
        self.shapes = {one.name: _shape(one) for one in (*graph.value_info, *graph.input, *graph.output)}
        self.gone: set[int] = set()

    def joined(self, node: Any) -> list[Any]:
        """Return what replaces a node."""
        if node.op_type == "LayerNormalization" and len(node.input) == 3 and _attribute(node, "axis", -1) == -1:
            return self._norm(node)
        if node.op_type == "Gelu" and not node.domain:
            return self._gelu(node)
        return [node]

    def _norm(self, node: Any) -> list[Any]:
        from onnx import helper

        total = self.makers.get(node.input[0])
        if total is None or total.op_type != "Add" or id(total) in self.gone or not self._alike(total):
            return [node]
        branch, stream, bias = total.input[1], total.input[0], ""
        inner = self._biased(branch)
        if inner is not None:
            branch, bias = inner
        self.gone.add(id(total))
        inputs = [branch, stream, node.input[1], node.input[2], *([bias] if bias else [])]
        made = helper.make_node(
            "SkipLayerNormalization",
            inputs,
            [node.output[0], "", "", node.input[0]],
            domain=DOMAIN,
            epsilon=_attribute(node, "epsilon", 1e-5),
        )
        return [made]

    def _gelu(self, node: Any) -> list[Any]:
        from onnx import helper

        tanh = _attribute(node, "approximate", b"none") == b"tanh"
        inner = self._biased(node.input[0])
        if not tanh and inner is None:
            return [node]
        inputs = [node.input[0]] if inner is None else [name for name in inner if name]
        return [helper.make_node("FastGelu" if tanh else "BiasGelu", inputs, list(node.output), domain=DOMAIN)]

    def _biased(self, name: str) -> tuple[str, str] | None:
        """Return the product and the bias whose sum has this name, if nothing else reads it; the sum is gone then."""
        total = self.makers.get(name)
        if total is None or total.op_type != "Add" or self.readers[name] != 1 or id(total) in self.gone:
            return None
        product, bias = total.input
        if len(self.constants.get(bias, [])) != 1 or product in self.constants:
            return None
        self.gone.add(id(total))
        return product, bias

    def _alike(self, total: Any) -> bool:
        """Tell whether two summands have one shape of three axes: the operator does not stretch one over the other."""
        a, b = (self.shapes.get(name) for name in total.input)
        return a is not None and a == b and len(a) == 3


def _in_order(nodes: list[Any]) -> list[Any]:
    """Put nodes behind those that make what they read."""
    made = {name for node in nodes for name in node.output if name}
    ready: set[str] = set()
    waiting, out = list(nodes), []
    while waiting:
        late = []
        for node in waiting:
            if all(name not in made or name in ready for name in node.input):
                out.append(node)
                ready.update(node.output)
            else:
                late.append(node)
        assert len(late) < len(waiting), "a graph has no ring"
        waiting = late
    return out


def _attribute(node: Any, name: str, default: Any) -> Any:
    from onnx import helper

    return next((helper.get_attribute_value(one) for one in node.attribute if one.name == name), default)


def _shape(one: Any) -> tuple[Any, ...] | None:
    if not one.type.tensor_type.HasField("shape"):
        return None
    sizes = tuple(dim.dim_param or dim.dim_value for dim in one.type.tensor_type.shape.dim)
    return sizes if all(sizes) else None
