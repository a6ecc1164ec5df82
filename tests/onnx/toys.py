"""Small models away from their beginning, exported once for all tests."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import torch

from kinfolk.onnx.engine import Engine
from kinfolk.onnx.export import to_onnx
from tests.family.test_relatives import model


@functools.cache
def toy(name):
    return model(name, torch.float32)


@functools.cache
def exported(name, **options):
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    to_onnx(toy(name), folder / "graphs", **options)
    return Engine(folder / "graphs", threads=1)
