"""From a module to an ONNX graph, with batch and lengths left open; what cannot be one is named by its place."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.core.errors import KinfolkError, SpecError
from kinfolk.use.onnx.graphs import Graph

OPSET = 20


def traced(graph: Graph, example: dict[str, Tensor], axes: Mapping[str, Sequence[str | int]]) -> Any:
    """Return the ONNX model of a graph; axes with a name may differ from the example."""
    given = tuple(example[name] for name in graph.inputs)
    names = [{i: name for i, name in enumerate(axes[one]) if name and isinstance(name, str)} for one in graph.inputs]
    open_axes = (tuple(dict.fromkeys(one, torch.export.Dim.AUTO) for one in names),)
    program = None
    with _quiet(), torch.no_grad(), _watched(graph) as inside:
        try:
            program = torch.export.export(
                graph, given, dynamic_shapes=open_axes, strict=False, prefer_deferred_runtime_asserts_over_guards=True
            )
            made = torch.onnx.export(
                program,
                input_names=graph.inputs,
                output_names=graph.outputs,
                opset_version=OPSET,
                dynamo=True,
                optimize=True,
                verbose=False,
            )
        except Exception as error:
            where = inside[-1] if program is None and inside else _culprit(program, str(error))
            raise SpecError(f"{place(graph.model, where)} cannot be exported: {_reason(error)}") from error
    assert made is not None
    proto = made.model_proto
    _name_axes(graph, proto, dict(zip(graph.inputs, names, strict=True)))
    return proto


def place(model: Any, path: str) -> str:
    """Return the place of a module in the spec, and the kind of part that is there."""
    spec, kind, steps = model.spec, "", []
    for step in path.removeprefix("model.").split("."):
        spec = spec[int(step)] if step.isdigit() and isinstance(spec, tuple) else getattr(spec, step, None)
        if spec is None or isinstance(spec, str | int | float | bool):
            break
        steps.append(step)
        kind = getattr(spec, "kind", kind)
    return f"{'.'.join(steps) or 'model'} ({kind or model.spec.topology})"


def bare(proto: Any) -> Any:
    """Return a graph without what the exporter noted in it: names of files and lines of this machine."""
    import onnx

    out = onnx.ModelProto()
    out.CopyFrom(proto)
    del out.metadata_props[:]
    graph = out.graph
    for one in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        del one.metadata_props[:]
        one.doc_string = ""
    return out


def failing(model: Any, protos: Iterable[Any], message: str) -> str:
    """Return the place of the node that a message of onnxruntime is about."""
    for proto in protos:
        for node in proto.graph.node:
            if f"'{node.name}'" in message:
                scopes = next((p.value for p in node.metadata_props if p.key.endswith("name_scopes")), "")
                names = re.findall(r"'([\w.]+)'", scopes)
                return place(model, max((name for name in names if name.startswith("model")), key=len, default=""))
    return place(model, "")


@contextlib.contextmanager
def _watched(graph: nn.Module) -> Iterator[list[str]]:
    """Note which module is running: when something is raised, the innermost is the last."""
    inside: list[str] = []
    hooks = []
    for name, module in graph.named_modules():
        if name:
            hooks.append(module.register_forward_pre_hook(lambda *_, name=name: inside.append(name)))
            hooks.append(module.register_forward_hook(lambda *_: inside.pop() and None))
    try:
        yield inside
    finally:
        for hook in hooks:
            hook.remove()


def _culprit(program: Any, message: str) -> str:
    """Return the module of the operator that a message is about."""
    for node in () if program is None else program.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack and node.op == "call_function" and re.search(rf"\b{re.escape(str(node.target))}\b", message):
            found: str = list(stack.values())[-1][0]
            return re.sub(r"L\['self'\]\.?|_modules\['(\w+)'\]", r"\1", found)
    return ""


def _reason(error: BaseException) -> str:
    """Return the innermost cause in one line."""
    while not isinstance(error, KinfolkError) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _name_axes(graph: Graph, proto: Any, names: dict[str, dict[int, str]]) -> None:
    """Call open axes by what they are; refuse a graph in which one was closed."""
    for one in proto.graph.input:
        for axis, name in names.get(one.name, {}).items():
            found = one.type.tensor_type.shape.dim[axis]
            if found.HasField("dim_value"):
                closed = f"its {name} would always be {found.dim_value}"
                raise SpecError(f"{place(graph.model, '')} cannot be exported: {closed} ({one.name})")
            found.dim_param = name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says about itself from the terminal."""
    loud = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export", "torch")]
    levels = [logger.level for logger in loud]
    for logger in loud:
        logger.setLevel(logging.CRITICAL)
    try:
        quiet = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loud, levels, strict=True):
            logger.setLevel(level)
