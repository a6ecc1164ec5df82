"""A user's own Python file, imported so that the kinds and relatives it defines register themselves.

The paths are also left in the environment: the processes that a run starts (the trials of a comparison, the
workers of a distributed run) load the same files and so know the same kinds.
"""

import hashlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from kinfolk.core.errors import KinfolkError, SpecError

VARIABLE = "KINFOLK_PLUGINS"
"""Where child processes find the plugins of their parent, joined as in a search path."""


def load_plugin(path: str | Path) -> ModuleType:
    """Import a Python file under a private name, once; an error in it is one line with its file and line."""
    file = Path(path).expanduser().resolve()
    name = f"_kinfolk_plugin_{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise SpecError(f"plugin {path}: there is no such file")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SpecError(f"plugin {path}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name, so it must be there before its body runs
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise SpecError(f"plugin {_where(error, file)}: {_what(error)}") from error
    _remember(file)
    return module


def load_inherited() -> None:
    """Load the plugins of the process that started this one."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_plugin(path)


def _remember(file: Path) -> None:
    known = [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    if str(file) not in known:
        os.environ[VARIABLE] = os.pathsep.join([*known, str(file)])


def _where(error: Exception, file: Path) -> str:
    """Return `file:line` of the deepest line of the plugin that the error passed through."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file}:{lines[-1]}" if lines else str(file)


def _what(error: Exception) -> str:
    if isinstance(error, KinfolkError):
        return str(error)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
