"""The relatives that exist while a program runs: a table from names to the functions that make them.

A relative enters by being defined under `@relative(...)`, in this package or in a user's own file. The arguments
of the decorator are literals, because `kinfolk.family.catalogue` reads them from the source text as well.
"""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

from kinfolk.core import plugins
from kinfolk.core.errors import SpecError, suggest
from kinfolk.family.about import About

F = TypeVar("F", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Entry:
    """A relative: what is known of it, and the function from a few numbers to its recipe."""

    about: About
    function: Callable[..., Any]


_entries: dict[str, Entry] = {}


def relative(
    name: str,
    *,
    parent: str | None,
    paper: str,
    changes: str,
    year: int = 0,
    topology: str | None = None,
    causal: bool | None = None,
    input: str = "tokens",
) -> Callable[[F], F]:
    """Enter the decorated function into the family under this name; the function itself stays as it is.

    topology, causal: None is the parent's, which must be defined before. year: 0 is the first that `paper` names.
    """
    elder = _entries.get(parent or "")
    if elder is not None:
        topology, causal = topology or elder.about.topology, elder.about.causal if causal is None else causal
    if topology is None or causal is None:
        raise SpecError(f"relative {name!r}: topology and causal must be given, since parent {parent!r} is not defined")
    about = About(
        name=name,
        parent=parent,
        year=year,
        paper=paper,
        topology=topology,
        causal=causal,
        input=input,
        changes=changes,
    )

    def enter(function: F) -> F:
        register(about, function)
        return function

    return enter


def register(about: About, function: Callable[..., Any]) -> None:
    """Enter a relative. A name that is taken is refused, unless the same function is being defined again."""
    twin = _entries.get(about.name)
    if twin is not None and _place(twin.function) != _place(function):
        raise SpecError(f"relative {about.name!r} is already defined by {'.'.join(_place(twin.function))}")
    _entries[about.name] = Entry(about, function)


@functools.cache
def load() -> None:
    """Import every branch of the family, and the plugins this process was started with."""
    package = importlib.import_module("kinfolk.family")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"kinfolk.family.{module.name}")
    plugins.load_inherited()


def relatives() -> list[str]:
    """Return the names of all relatives, sorted."""
    load()
    return sorted(_entries)


def about(name: str) -> About:
    """Return what is known of a relative."""
    return entry(name).about


def entry(name: str) -> Entry:
    """Return a relative by name; an unknown one is refused with the nearest match."""
    load()
    if name not in _entries:
        raise SpecError(f"unknown relative {name!r}{suggest(name, _entries)}")
    return _entries[name]


def entries() -> dict[str, Entry]:
    """Return the relatives that are registered so far, without importing any."""
    return dict(_entries)


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__
