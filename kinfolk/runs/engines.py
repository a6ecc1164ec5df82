"""Inference engines: what runs a trained model. An engine registers itself by being defined.

`kinfolk.decoding.engines` has the base class, whose subclasses are registered here, below them.
"""

import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinfolk.core.device import accelerator
from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.plugins import Registry
from kinfolk.models.folder import WEIGHTS
from kinfolk.runs import durable
from kinfolk.runs.onnx_export import ExportRecord, is_exported

Opener = Callable[[Any, int], Any]
"""From a run and a number of threads (0: the engine's own choice) to what runs its model."""

HOMES = {
    "torch": "kinfolk.decoding.engines.torch_engine",
    "torch-bf16": "kinfolk.decoding.engines.torch_engine",
    "onnx": "kinfolk.use.onnx.opening",
}
"""Modules of the engines that come with the package; each is imported when it is first asked for."""

AUTO = "auto"
KEPT = "onnx"
"""Inside a run: the graphs that were exported when they were first asked for."""

_engines: Registry[Opener] = Registry()


def engine(name: str) -> Callable[[Opener], Opener]:
    """Register what opens an engine under a name."""

    def register(opener: Opener) -> Opener:
        _engines[name] = opener
        return opener

    return register


def engines() -> list[str]:
    """Return the names of all engines, plugins' own included."""
    return sorted({*_engines, *HOMES})


def opener_of(name: str) -> Opener:
    """Return what opens an engine."""
    if name not in _engines and name in HOMES:
        importlib.import_module(HOMES[name])
    if name not in _engines:
        raise SpecError(f"engine: unknown {name!r}{suggest(name, engines())}")
    return _engines[name]


def automatic(path: Path) -> tuple[str, str]:
    """Return the engine that `--engine auto` takes for a run folder, and why: by what is installed and what is there.

    Never by a measurement, and never one whose numbers differ by more than float rounding from the run's.
    """
    if is_exported(path):
        return "onnx", "the folder is an export"
    if (device := accelerator()) is not None:
        return "torch", f"this machine has an accelerator ({device.type})"
    if importlib.util.find_spec("onnxruntime") is None:
        return "torch", "onnxruntime is not installed"
    if not has_graphs(path):
        return "torch", f"{path.name} has no graphs of these weights; --engine onnx makes them, once"
    return "onnx", f"{path.name} has graphs of these weights, and this machine computes on its CPU"


def has_graphs(path: Path) -> bool:
    """Tell whether a run has graphs of the weights that it has now."""
    kept, weights = path / KEPT, path / WEIGHTS
    return is_exported(kept) and weights.is_file() and ExportRecord.read(kept).source == durable.digest(weights)
