"""Inference engines: what runs a trained model. An engine registers itself by being defined.

`kinfolk.decoding.engines` has the base class, whose subclasses are registered here, below them.
"""

import importlib
from collections.abc import Callable
from typing import Any

from kinfolk.core.errors import SpecError, suggest

Opener = Callable[[Any, int], Any]
"""From a run and a number of threads (0: the engine's own choice) to what runs its model."""

HOMES = {"torch": "kinfolk.decoding.engines.torch_engine", "onnx": "kinfolk.use.onnx.opening"}
"""Modules of the engines that come with the package; each is imported when it is first asked for."""

_engines: dict[str, Opener] = {}


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
