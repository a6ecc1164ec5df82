"""From a run of any layout to ONNX graphs, and to the engine that runs them."""

import tempfile
from pathlib import Path
from typing import Any, Self

from kinfolk.decoding.engines.onnx.engine import OnnxEngine
from kinfolk.decoding.engines.onnx.exported import ExportedModel
from kinfolk.models.folder import WEIGHTS
from kinfolk.models.model import Transformer
from kinfolk.runs import durable
from kinfolk.runs.onnx_export import TOKENIZER, About, is_exported
from kinfolk.runs.run import Run, SavedModel
from kinfolk.use.onnx.export import to_int8, to_onnx

KEPT = "onnx"
"""Inside a run: the graphs that were made when they were first asked for."""


def export(what: str | Path | Run, out: Path, int8: bool = False) -> About:
    """Write a run or a saved model as graphs; int8 as well is held to torch before it is quantised."""
    model, more = _read(Run.open(what))
    if not int8:
        return to_onnx(model, out, **more)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".onnx-") as aside:
        to_onnx(model, Path(aside) / "fp32", **more)
        return to_int8(Path(aside) / "fp32", out)


class ExportingEngine(OnnxEngine, kind="onnx"):
    """onnxruntime for exports and for runs, whose graphs are exported once and kept in the run."""

    @classmethod
    def open(cls, run: Run, threads: int = 0) -> Self:
        """Open an export; of a run, its graphs, which are exported again when its weights have changed."""
        if is_exported(run.path):
            return cls(ExportedModel(run.path, threads))
        kept, weights = run.path / KEPT, run.path / WEIGHTS
        if not is_exported(kept) or not weights.is_file() or About.read(kept).source != durable.digest(weights):
            export(run, kept)
        return cls(ExportedModel(kept, threads))


def _read(run: Run) -> tuple[Transformer, dict[str, Any]]:
    """Return a model, and what is to be written beside its graphs."""
    more: dict[str, Any] = {}
    if (run.path / TOKENIZER).is_file():
        more["tokenizer"] = run.path / TOKENIZER
    if (run.path / WEIGHTS).is_file():
        more["source"] = durable.digest(run.path / WEIGHTS)
    if not isinstance(run, SavedModel):
        more |= {"recipe": run.recipe, "kind": run.data_kind}
    return run.model(), more
