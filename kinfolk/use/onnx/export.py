"""From a model to a folder of graphs, each held to torch before it is written."""

import contextlib
import copy
import dataclasses
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.core.errors import KinfolkError, SpecError
from kinfolk.core.plain import dumps
from kinfolk.decoding.engines.onnx.session import need
from kinfolk.family.recipe import Recipe
from kinfolk.layers.embeddings.embedding import TokensModule
from kinfolk.layers.heads.class_head import JudgingHead
from kinfolk.layers.mixers.compressed_attention import MemoryCompressedModule
from kinfolk.layers.positions.position import SinusoidModule
from kinfolk.models.model import Transformer
from kinfolk.runs import durable
from kinfolk.runs.onnx_export import ABOUT, DECODER, ENCODER, MODEL, SPEC, TOKENIZER, ExportRecord, Kept, is_exported
from kinfolk.use.onnx.check import LIMIT, between, differences
from kinfolk.use.onnx.fused import fuse
from kinfolk.use.onnx.graphs import DecoderGraph, EncoderGraph, Graph, MemoryGraph
from kinfolk.use.onnx.int4 import Int4Quantizer
from kinfolk.use.onnx.int8 import Int8Quantizer
from kinfolk.use.onnx.lean import lean
from kinfolk.use.onnx.quantizer import Quantizer
from kinfolk.use.onnx.recurrent import as_operators
from kinfolk.use.onnx.trace import bare, failing, traced

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
    **more: Any,
) -> ExportRecord:
    """Write a model as graphs for onnxruntime; what cannot be one is refused with the place of the part.

    recipe: written beside the graphs, if the model is part of one. more: fields of `About`
    that say what the model was trained on.
    """
    need("onnx", "onnxscript", "onnxruntime")
    if model.spec.prompt != "causal":
        raise SpecError("model.prompt: a graph reads token by token, so a bidirectional prompt cannot be exported")
    own, failed = copy.deepcopy(model).eval().float(), []
    maker = Maker(copy.deepcopy(own))
    for padded, single in maker.ways:
        try:
            about, graphs = maker.make(padded, single)
            with replacing(Path(out)) as aside:
                (aside / SPEC).write_text(dumps(recipe or model.spec), encoding="utf-8")
                if tokenizer is not None:
                    durable.copy(Path(tokenizer), aside / TOKENIZER)
                about = dataclasses.replace(about, **more)
                return _written(aside, about, graphs, own)
        except SpecError as error:
            failed.append(error)
    # even the least demanding way did not work
    raise failed[-1]


def _written(aside: Path, about: ExportRecord, graphs: dict[str, Any], model: Transformer) -> ExportRecord:
    """Write graphs, and hold them to torch."""
    for name, graph in graphs.items():
        (aside / name).write_bytes(lean(bare(graph)).SerializeToString())
    (aside / ABOUT).write_text(about.text(), encoding="utf-8")
    try:
        found = differences(aside, model)
    except KinfolkError:
        raise
    except Exception as error:
        why = str(error).replace(f"{aside}/", "")
        raise SpecError(f"{failing(model, graphs.values(), why)} cannot be run: {why}") from None
    worst = max(found.values())
    if not worst <= LIMIT:
        raise SpecError(f"model ({about.topology}): the graph differs from torch by {worst:.1e}, allowed {LIMIT:g}")
    about = dataclasses.replace(about, differences=found)
    (aside / ABOUT).write_text(about.text(), encoding="utf-8")
    return about


def to_int8(folder: str | Path, out: str | Path) -> ExportRecord:
    """Write a folder of graphs again with weights of 8-bit integers."""
    return _quantised(Path(folder), out, "int8", Int8Quantizer)


def to_int4(folder: str | Path, out: str | Path) -> ExportRecord:
    """Write a folder of graphs again with weights of 4-bit integers in blocks."""
    return _quantised(Path(folder), out, "int4", Int4Quantizer)


def _quantised(folder: Path, out: str | Path, precision: str, quantizer: type[Quantizer]) -> ExportRecord:
    """Write a folder of graphs again with integers, and what they differ by from it."""
    need("onnx", "onnxruntime")
    import onnx

    about, errors = ExportRecord.read(folder), []
    if about.precision != "fp32":
        raise SpecError(f"{folder}: its graphs are {about.precision} already")
    with replacing(Path(out)) as aside:
        for name in about.files:
            graph, of_matrices = quantizer.quantised(onnx.load(folder / name))
            (aside / name).write_bytes(graph.SerializeToString())
            errors += of_matrices
        for name in (SPEC, TOKENIZER):
            if (folder / name).is_file():
                durable.copy(folder / name, aside / name)
        (aside / ABOUT).write_text(about.text(), encoding="utf-8")
        found, of_outputs = between(folder, aside)
        mean = {"weights": statistics.fmean(errors or [0.0]), "outputs": of_outputs}
        about = dataclasses.replace(about, precision=precision, differences=found, errors=mean)
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


class Maker:
    """Makes the graphs of a model, which it changes. What was traced once is not traced again."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.topology = model, model.spec.topology
        self.judges = isinstance(model.head, JudgingHead)
        self.found: dict[Any, Any] = {}
        if self.judges and self.topology == "encoder-decoder":
            raise SpecError(f"head ({model.spec.head.kind}) cannot be exported: of two stacks, only what decodes can")
        as_operators(model)
        self.decodes = self.topology != "encoder" and not self.judges
        self.length = model.spec.max_len if model.spec.embedding.one_size else 0
        self.fused = self.decodes and fuse(model)

    @property
    def ways(self) -> tuple[tuple[bool, bool], ...]:
        """What is tried, the best first: padding mask of an encoder or none, one token at a time or several."""
        if self.length:
            return ((False, False),)
        singles = (False, True) if self.decodes else (False,)
        padded = (True,) if self.topology == "decoder" and self.decodes else (True, False)
        return tuple((a, b) for a in padded for b in singles)

    def make(self, padded: bool, single: bool) -> tuple[ExportRecord, dict[str, Any]]:
        """Return the graphs by file, and what must be known of them."""
        model, limit = self.model, None if self.length else _limit(self.model)
        made: dict[str, Any] = {"topology": self.topology, "limit": limit, "padded": padded, "length": self.length}
        made |= {"vocab_size": model.spec.vocab_size, "generation": model.generation}
        about = ExportRecord(precision="fp32", **made)
        if not self.decodes:
            tables = [m.segments for m in model.modules() if isinstance(m, TokensModule) and m.segments is not None]
            segmented = any(table.num_embeddings > 1 for table in tables)
            graph = self._once(("model", padded), lambda: _encoder(EncoderGraph(model, padded, segmented), self.length))
            return dataclasses.replace(about, segmented=segmented), {MODEL: graph}
        graphs, begun = {}, {}
        if self.topology == "encoder-decoder":
            graphs[ENCODER] = self._once((ENCODER, padded), lambda: _encoder(MemoryGraph(model, padded)))
            begun = _begun(model)
        state, graph = self._once((DECODER, single), lambda: _decoder(model, begun, single))
        graphs[DECODER if graphs else MODEL] = graph
        return dataclasses.replace(about, fused=self.fused, single=single, state=state), graphs

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Make something, or fail, once."""
        if key not in self.found:
            try:
                self.found[key] = make()
            except SpecError as error:
                self.found[key] = error
        if isinstance(self.found[key], SpecError):
            raise self.found[key]
        return self.found[key]


def _encoder(graph: Graph, length: int = 0) -> Any:
    example: dict[str, Tensor] = _example(graph.inputs)
    if not length:
        return traced(graph, example, AXES)
    example["tokens"] = torch.zeros(SIZES["batch"], length, dtype=torch.long)
    return traced(graph, example, AXES | {"tokens": ("batch", length)})


def _decoder(model: Transformer, begun: dict[str, Tensor], single: bool) -> tuple[tuple[Kept, ...], Any]:
    decoder = DecoderGraph(model)
    state, example = _state(decoder, begun)
    axes: dict[str, tuple[str | int, ...]] = AXES | {f"state.{kept.name}": kept.axes for kept in state}
    example = _example(decoder.inputs) | begun | example
    if single:
        # what reads tokens one after the other can be given one at a time
        example |= {"tokens": torch.zeros(SIZES["batch"], 1, dtype=torch.long), "at": torch.zeros(1, dtype=torch.long)}
        axes |= {"tokens": ("batch", 1), "at": (1,)}
    return state, traced(decoder, example, axes)


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
        fill = 0.0 if fresh is None or slot.fixed else float(fresh.detach().flatten()[0])
        if slot.like is not None:
            fresh = slot.like.new_zeros(*slot.like.shape[:2], SIZES["past"], slot.like.shape[3])
        value = begun.get(name, fresh)
        assert value is not None
        # copies: two states that begin as one tensor are two inputs
        example[name] = value.detach().clone()
        axes = tuple(axis or size for axis, size in zip(slot.axes, value.shape, strict=True))
        dtype = str(value.dtype).removeprefix("torch.")
        kept.append(Kept(name=slot.name, axes=axes, dtype=dtype, fill=fill, begins=slot.begins and bool(begun)))
    return tuple(kept), example


def _limit(model: Transformer) -> int | None:
    """Return how many positions the graphs have: tables that torch lengthens when it must are as they are."""
    tables = any(isinstance(module, SinusoidModule | MemoryCompressedModule) for module in model.modules())
    known = [n for n in (model.limit, model.spec.max_len if tables else None) if n is not None]
    return min(known, default=None)
