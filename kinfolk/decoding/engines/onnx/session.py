"""onnxruntime sessions whose idle threads do not spin, and tensors that are not copied between calls."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import MissingExtraError

Array = NDArray[Any]


def need(*packages: str) -> None:
    """Refuse to go on where an extra is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError("onnx", f"ONNX ({package})")


def open_session(graph: Path | bytes, threads: int = 0) -> Any:
    """Return a session; threads 0: one for each core."""
    need("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # what is wrong is raised; the rest is said to developers of onnxruntime
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    given = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def held(array: Array) -> Any:
    """Return an array as onnxruntime holds tensors."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def run(session: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Run a graph on what it asks for of arrays or held tensors; return held tensors by name."""
    names = [out.name for out in session.get_outputs()]
    wanted = {one.name for one in session.get_inputs()}
    feeds = {name: held(x) if isinstance(x, np.ndarray) else x for name, x in given.items() if name in wanted}
    return dict(zip(names, session.run_with_ort_values(names, feeds), strict=True))
