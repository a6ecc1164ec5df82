"""A user's own Python file, imported so that the kinds and relatives it defines register themselves.

Only the user decides what is imported: by naming a file (`--plugin`), or by allowing the hash of its content in the
configuration. A run records its plugins with their hashes, and opening it imports none of them: `require` checks that
they are loaded already, and otherwise says what would load them.

The paths are also left in the environment: the processes that a run starts (the trials of a comparison, the
workers of a distributed run) load the same files and so know the same kinds.
"""

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from kinfolk.core.errors import KinfolkError, SpecError
from kinfolk.core.spec import Spec

T = TypeVar("T")

VARIABLE = "KINFOLK_PLUGINS"
"""Where child processes find the plugins of their parent, joined as in a search path."""

LARGEST = 16 << 20
"""Bytes of a file that is hashed only because a run names it."""

_loaded: dict[Path, str] = {}
"""The plugins of this process, with the SHA-256 of what was imported."""


class Registry(dict[str, T]):
    """Classes, functions or objects by name, each registered by its own definition, which may be in a plugin."""

    def __init__(self) -> None:
        super().__init__()
        _registries.append(self)

    def unload(self, module: str) -> None:
        """Remove what a module has registered: a class, a function, a method of a class, or an object of one."""
        homes = {name: getattr(getattr(value, "__self__", value), "__module__", "") for name, value in self.items()}
        for name in [name for name, home in homes.items() if home == module]:
            del self[name]


_registries: list[Registry[Any]] = []


class _Loader(importlib.machinery.SourceFileLoader):
    """Import the bytes that were hashed: neither a file that has changed since, nor a cached .pyc beside it."""

    content = b""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the content."""
        code: CodeType = self.source_to_code(self.content, self.path)
        return code


def load_plugin(path: str | Path) -> ModuleType:
    """Import a Python file under a private name, once; an error in it is one line with its file and line.

    To be called with what the user named, never with what a file names.
    """
    file = Path(path).expanduser().resolve()
    name = f"_kinfolk_plugin_{file.stem}_{hashlib.blake2b(str(file).encode(), digest_size=4).hexdigest()}"
    if (module := sys.modules.get(name)) is not None:
        _remember(file, module.__loader__.content)  # type: ignore[union-attr]
        return module
    if not file.is_file():
        raise SpecError(f"plugin {path}: there is no such file")
    if file.suffix != ".py":
        raise SpecError(f"plugin {path}: expected a Python file (.py)")
    loader = _Loader(name, str(file))
    loader.content = file.read_bytes()
    spec = importlib.util.spec_from_loader(name, loader, origin=str(file))
    assert spec is not None
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name, so it must be there before its body runs
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except Exception as error:
        unload(module)
        raise SpecError(f"plugin {_where(error, file)}: {_what(error)}") from error
    _remember(file, loader.content)
    return module


def unload(module: ModuleType) -> None:
    """Undo the import of a plugin: nothing that it has registered can be chosen any longer."""
    for registry in _registries:
        registry.unload(module.__name__)
    for cls in _below(Spec):
        if cls.__module__ == module.__name__:
            # the class itself lives on in caches
            cls.kind = ""
    del sys.modules[module.__name__]


def _below(cls: type[Spec]) -> Iterator[type[Spec]]:
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)


def load_inherited() -> None:
    """Load the plugins of the process that started this one."""
    for path in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        load_plugin(path)


def loaded() -> list[dict[str, str]]:
    """Return the plugins of this process as a run records them."""
    return [{"path": str(file), "sha256": digest} for file, digest in _loaded.items()]


def require(recorded: Iterable[str | Mapping[str, Any]], where: str | Path) -> None:
    """Raise unless every plugin that `where` records is loaded or allowed; nothing that is only recorded is run.

    A record is a path with a hash; runs of earlier versions recorded the path alone, and a plugin of that name counts.
    """
    load_inherited()
    for entry in recorded:
        path, digest = (entry, "") if isinstance(entry, str) else (str(entry.get("path")), str(entry.get("sha256", "")))
        named = {sha for file, sha in _loaded.items() if file.name == Path(path).name}
        if digest in _loaded.values() or (named and not digest):
            continue
        if named:
            raise SpecError(
                f"{where}: its plugin {path} had SHA-256 {digest}, and the file of --plugin has {', '.join(named)}; "
                "`kin resume --accept-changes` records the new one, if the change is meant"
            )
        current = _digest(path)
        if current in allowed() and digest in ("", current):
            load_plugin(path)
            continue
        change = f" (now {current})" if current and digest and current != digest else ""
        raise SpecError(
            f"{where}: was made with plugin {path} (SHA-256 {digest or current or 'not recorded'}{change}), and "
            f"opening a run runs no code of it. If you trust this file, name it: --plugin {path}; or allow its hash in "
            f'{configuration()}: [plugins] allow = ["{digest or current}"]'
        )


def configuration() -> Path:
    """Return where the user's own configuration is kept."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # a relative path would lead into whatever folder the user happens to be in
    return (base if base.is_absolute() else Path("~/.config").expanduser()) / "kinfolk" / "config.toml"


def allowed() -> set[str]:
    """Return the hashes of plugins that the user's configuration allows."""
    file = configuration()
    try:
        hashes = tomllib.loads(file.read_text(encoding="utf-8")).get("plugins", {}).get("allow", [])
        return {str(digest).lower() for digest in hashes}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except (OSError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise SpecError(f"{file}: cannot be read: {error}; expected [plugins] with allow = [hashes]") from None


def _digest(path: str) -> str:
    """Return the hash of a file's content, or "" where it cannot be read."""
    try:
        file = Path(path).expanduser()
        readable = file.is_file() and file.stat().st_size <= LARGEST
        return hashlib.sha256(file.read_bytes()).hexdigest() if readable else ""
    except (OSError, ValueError, RuntimeError):
        return ""


def _remember(file: Path, content: bytes) -> None:
    """Record a plugin for the runs of this process, and leave its path to child processes."""
    _loaded[file] = hashlib.sha256(content).hexdigest()
    paths = [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    if str(file) not in paths:
        os.environ[VARIABLE] = os.pathsep.join([*paths, str(file)])


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
