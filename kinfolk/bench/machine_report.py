"""This machine: processor, memory, accelerator, versions, extras; and whether a small model can be saved."""

import dataclasses
import importlib.util
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from kinfolk.core.device import accelerator
from kinfolk.core.machine import cores
from kinfolk.family.building import build, save
from kinfolk.family.making import make
from kinfolk.runs.run import load_model
from kinfolk.train.precision import fast_format

EXTRAS = {
    "data": (("pyarrow", "PIL"), "reads Parquet tables and image files"),
    "log": (("tensorboard",), "writes TensorBoard files"),
    "tune": (("optuna",), "kin compare --tune: a search over several hyperparameters"),
    "ray": (("ray",), "kin compare --on ray: trials on a Ray cluster"),
    "slurm": (("submitit",), "kin compare --on slurm: trials through a Slurm queue"),
    "rl": (("gymnasium",), "trains relatives that act in Gymnasium's environments"),
    "translate": (("sacrebleu",), "reports BLEU as sacrebleu computes it"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "exports ONNX graphs and decodes with onnxruntime"),
    "gguf": (("gguf", "transformers"), "kin import FILE.gguf: weights of llama.cpp"),
    "serve": (("uvicorn",), "kin serve: runs behind an HTTP address"),
    "harness": (("lm_eval",), "kin eval --tasks: tasks of lm-evaluation-harness"),
    "bench": (("transformers", "x_transformers", "ctranslate2"), "kin bench: the libraries measured beside ours"),
}
"""Optional dependencies: the modules that each installs, and what they are for."""


@dataclasses.dataclass(frozen=True)
class OptionalDependency:
    """An optional dependency group, what it gives, and which of its modules are missing."""

    name: str
    gives: str
    missing: tuple[str, ...]


def facts() -> dict[str, str]:
    """Return what a report of a problem should say about the machine."""
    device = accelerator()
    memory = psutil.virtual_memory()
    home = Path.cwd()
    return {
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "python": platform.python_version(),
        "kinfolk": metadata.version("kinfolk"),
        "torch": torch.__version__,
        "cores": f"{cores()} usable of {os.cpu_count()}",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory": f"{memory.total / 1e9:.1f} GB, {memory.available / 1e9:.1f} GB available",
        "accelerator": "none" if device is None else _accelerator(device),
        "precision": f"{fast_format(device or torch.device('cpu'))} is the fast format of this device",
        "folder": f"{home} ({'writable' if os.access(home, os.W_OK) else 'not writable'})",
    }


def _accelerator(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return f"{device.type} {name}".strip()


def extras() -> list[OptionalDependency]:
    """Return every optional dependency group with its missing modules."""
    return [
        OptionalDependency(name, gives, tuple(module for module in modules if importlib.util.find_spec(module) is None))
        for name, (modules, gives) in EXTRAS.items()
    ]


def write_and_read() -> str:
    """Save a small model to a temporary folder and load it; return what went wrong, or nothing."""
    tokens = torch.arange(8)[None]
    try:
        with tempfile.TemporaryDirectory() as folder:
            recipe: Any = make("gpt2", size="tiny", n_layers=1, vocab_size=16)
            model = build(recipe).eval()
            save(model, Path(folder) / "model")
            same = torch.equal(load_model(Path(folder) / "model").eval()(tokens).logits, model(tokens).logits)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if same else "the model that was read is not the one that was written"
