"""From a model to a folder of graphs, each held to torch before it is written."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps
from kinfolk.family.recipe import Recipe
from kinfolk.layers.class_head import JudgingHead
from kinfolk.layers.compressed import _MemoryCompressed
from kinfolk.layers.embedding import TokensModule
from kinfolk.layers.position import _Sinusoid
from kinfolk.models.model import Transformer
from kinfolk.onnx.check import LIMIT, between, differences
from kinfolk.onnx.folder import ABOUT, DECODER, ENCODER, MODEL, SPEC, TOKENIZER, About, Kept, is_exported
from kinfolk.onnx.fused import fuse
from kinfolk.onnx.graphs import DecoderGraph, EncoderGraph, Graph, MemoryGraph
from kinfolk.onnx.int8 import quantise
from kinfolk.onnx.trace import need, traced
from kinfolk.train import durable

SIZES = {"batch": 2, "length": 3, "past": 4, "memory": 5, "scored": 2}
"""Of what is traced: each axis another, and none that torch takes for a constant."""
AXES = {
    "tokens": ("batch", "length"),
    "keep": ("batch", "length"),
    "segments": ("batch", "length"),
    "source": ("batch", "memory"),
    "source_keep": ("batch", "memory"),
    "start": ("batch",),
    "seen": ("batch", "past"),
    "at": ("scored",),
    "memory_keep": ("batch", "memory"),
    "memory": ("batch", "memory", ""),
}
"""Of inputs that are not part of the state."""


def to_onnx(
    model: Transformer,
    out: str | Path,
    *,
    recipe: Recipe | None = None,
    tokenizer: str | Path | None = None,
    **more: str,
) -> About:
    """Write a model as graphs for onnxruntime; what cannot be one is refused with the place of the part.

    recipe: written beside the graphs, if the model is part of one. more: `kind` and `source` of `About`.
    """
    need("onnx", "onnxscript", "onnxruntime")
    own = copy.deepcopy(model).eval().float()
    about, graphs = make(copy.deepcopy(own))
    with replacing(Path(out)) as aside:
        for name, graph in graphs.items():
            (aside / name).write_bytes(graph.SerializeToString())
        (aside / SPEC).write_text(dumps(recipe or model.spec), encoding="utf-8")
        if tokenizer is not None:
            durable.copy(Path(tokenizer), aside / TOKENIZER)
        about = dataclasses.replace(about, **more)  # type: ignore[arg-type]
        (aside / ABOUT).write_text(about.text(), encoding="utf-8")
        found = differences(aside, own)
        worst = max(found.values())
        if not worst <= LIMIT:
            raise SpecError(f"model ({about.topology}): the graph differs from torch by {worst:.1e}, allowed {LIMIT:g}")
        about = dataclasses.replace(about, differences=found)
        (aside / ABOUT).write_text(about.text(), encoding="utf-8")
    return about


def to_int8(folder: str | Path, out: str | Path) -> About:
    """Write a folder of graphs again with weights of 8-bit integers."""
    need("onnx", "onnxruntime")
    import onnx

    folder = Path(folder)
    about = About.read(folder)
    if about.precision != "fp32":
        raise SpecError(f"{folder}: its graphs are {about.precision} already")
    with replacing(Path(out)) as aside:
        for name in about.files:
            (aside / name).write_bytes(quantise(onnx.load(folder / name)).SerializeToString())
        for name in (SPEC, TOKENIZER):
            if (folder / name).is_file():
                durable.copy(folder / name, aside / name)
        (aside / ABOUT).write_text(about.text(), encoding="utf-8")
        about = dataclasses.replace(about, precision="int8", differences=between(folder, aside))
        (aside / ABOUT).write_text(about.text(), encoding="utf-8")
    return about


@contextlib.contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Give a folder to fill, which takes the place of an older export; anything else is left alone."""
    if out.exists() and not is_exported(out) and (not out.is_dir() or any(out.iterdir())):
        raise SpecError(f"{out}: is there already, and is no export; give another --out")
    with durable.folder(out) as aside:
        yield aside
        durable.remove(out)


def make(model: Transformer) -> tuple[About, dict[str, Any]]:
    """Return the graphs of a model by file, and what must be known of them."""
    topology, judges = model.spec.topology, isinstance(model.head, JudgingHead)
    about = About(topology=topology, precision="fp32", limit=_limit(model), vocab_size=model.spec.vocab_size)
    if topology == "encoder" or (topology == "decoder" and judges):
        segmented = any(isinstance(m, TokensModule) and m.segments is not None for m in model.modules())
        graph, padded = _padded(lambda padded: EncoderGraph(model, padded, segmented))
        return dataclasses.replace(about, padded=padded, segmented=segmented), {MODEL: graph}
    if judges:
        raise SpecError(f"head ({model.spec.head.kind}) cannot be exported: only what decodes is, of two stacks")
    graphs: dict[str, Any] = {}
    padded, begun = True, {}
    if topology == "encoder-decoder":
        graphs[ENCODER], padded = _padded(lambda padded: MemoryGraph(model, padded))
        begun = _begun(model)
    fused = fuse(model)
    decoder = DecoderGraph(model)
    state, example = _state(decoder, begun)
    axes = AXES | {f"state.{kept.name}": kept.axes for kept in state}
    graphs[DECODER if graphs else MODEL] = traced(decoder, _example(decoder.inputs) | begun | example, axes)
    return dataclasses.replace(about, padded=padded, fused=fused, state=state), graphs


def _padded(make_graph: Callable[[bool], Graph]) -> tuple[Any, bool]:
    """Trace a graph that is told which tokens are real, or else one whose rows have one length."""
    try:
        graph = make_graph(True)
        return traced(graph, _example(graph.inputs), AXES), True
    except SpecError:
        graph = make_graph(False)
        return traced(graph, _example(graph.inputs), AXES), False


def _example(names: list[str]) -> dict[str, Tensor]:
    """Return small tensors for inputs that are not part of the state."""
    found = {}
    for name in names:
        if name in AXES and name != "memory":
            shape = [SIZES[axis] for axis in AXES[name]]
            real = name in ("keep", "source_keep", "memory_keep")
            found[name] = torch.ones(shape, dtype=torch.bool) if real else torch.zeros(shape, dtype=torch.long)
    if "seen" in found:
        found["seen"] = torch.arange(SIZES["past"]).expand(SIZES["batch"], -1).clone()
        found["start"] = torch.full((SIZES["batch"],), SIZES["past"])
    return found


@torch.no_grad()
def _begun(model: Transformer) -> dict[str, Tensor]:
    """Return what an encoder says of a small source."""
    graph = MemoryGraph(model, False)
    found: dict[str, Tensor] = dict(zip(graph.outputs, graph(*_example(graph.inputs).values()), strict=True))
    return found


def _state(decoder: DecoderGraph, begun: dict[str, Tensor]) -> tuple[tuple[Kept, ...], dict[str, Tensor]]:
    """Describe the state, and return a small one."""
    kept, example = [], {}
    for slot in decoder.layers(SIZES["batch"]).slots():
        name, fresh = f"state.{slot.name}", slot.get()
        fill = 0.0 if fresh is None or slot.fixed else float(fresh.flatten()[0])
        if slot.like is not None:
            fresh = slot.like.new_zeros(*slot.like.shape[:2], SIZES["past"], slot.like.shape[3])
        value = begun.get(name, fresh)
        assert value is not None
        example[name] = value.contiguous()
        axes = tuple(axis or size for axis, size in zip(slot.axes, value.shape, strict=True))
        dtype = str(value.dtype).removeprefix("torch.")
        kept.append(Kept(name=slot.name, axes=axes, dtype=dtype, fill=fill, begins=slot.begins and bool(begun)))
    return tuple(kept), example


def _limit(model: Transformer) -> int | None:
    """Return how many positions the graphs have: tables that torch lengthens when it must are as they are."""
    tables = any(isinstance(module, _Sinusoid | _MemoryCompressed) for module in model.modules())
    known = [n for n in (model.limit, model.spec.max_len if tables else None) if n is not None]
    return min(known, default=None)
