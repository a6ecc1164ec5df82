"""From a run of any layout to ONNX graphs, and to the engine that runs them."""

import tempfile
from pathlib import Path
from typing import Any, Literal, Self

from kinfolk.core.errors import SpecError
from kinfolk.core.plain import to_plain
from kinfolk.data import Batches, Data
from kinfolk.decoding.engines.onnx.engine import OnnxEngine
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.models.folder import WEIGHTS
from kinfolk.models.model import Transformer
from kinfolk.runs import durable
from kinfolk.runs.engines import KEPT, has_graphs
from kinfolk.runs.onnx_export import ExportRecord, is_exported
from kinfolk.runs.run import ExportedRun, Run, SavedModel
from kinfolk.train.evaluate import evaluate
from kinfolk.train.run import reading_of
from kinfolk.use.onnx.export import to_int4, to_int8, to_onnx

QUANTISED = {"int8": to_int8, "int4": to_int4}
Precision = Literal["fp32", "int8", "int4"]


def export(what: str | Path | Run, out: Path, precision: Precision = "fp32") -> ExportRecord:
    """Write a run as graphs, of integers after they were compared with torch; an export can be quantised only."""
    run = Run.open(what)
    if isinstance(run, ExportedRun):
        if precision == "fp32":
            raise SpecError(f"{run.path}: is an ONNX export already; --int8 and --int4 quantise its weights")
        return QUANTISED[precision](run.path, out)
    model, more = _read(run)
    if precision == "fp32":
        return to_onnx(model, out, **more)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".onnx-") as aside:
        to_onnx(model, Path(aside) / "fp32", **more)
        return QUANTISED[precision](Path(aside) / "fp32", out)


class ExportingEngine(OnnxEngine, kind="onnx"):
    """onnxruntime for exports and for runs, whose graphs are exported once and kept in the run."""

    @classmethod
    def open(cls, run: Run, threads: int = 0) -> Self:
        """Open an export; of a run, its graphs, which are exported again when its weights have changed."""
        if is_exported(run.path):
            return cls(ExportedModel(run.path, threads))
        kept = run.path / KEPT
        if not has_graphs(run.path):
            export(run, kept)
        return cls(ExportedModel(kept, threads))


def compared(run: Run, exported: Run, data: Data, n_batches: int = 0) -> dict[str, dict[str, float]]:
    """Return the scores of a run and of its export on validation data, by measure."""
    batches = Batches(split=data.split("valid"), shuffle=False, **reading_of(run.recipe.training))
    in_torch, by_graph = (evaluate(one.scorer(), batches, n_batches) for one in (run, exported))
    assert isinstance(exported, ExportedRun)
    name = f"onnxruntime {exported.about.precision}"
    return {measure: {"torch fp32": in_torch[measure].mean, name: score.mean} for measure, score in by_graph.items()}


def _read(run: Run) -> tuple[Transformer, dict[str, Any]]:
    """Return a model, and what is to be written beside its graphs."""
    more: dict[str, Any] = {}
    if run.own_tokenizer is not None:
        more["tokenizer"] = run.tokenizer_file
    if (run.path / WEIGHTS).is_file():
        more["source"] = durable.digest(run.path / WEIGHTS)
    if not isinstance(run, SavedModel):
        notes = run.metadata.reading
        more |= {"recipe": run.recipe, "kind": run.data_kind, "classes": run.class_names}
        more |= {"reading": {} if notes is None else to_plain(notes)}
    return run.model(), more
