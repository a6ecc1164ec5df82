"""Direct calls of modules: `module(x)` is `module.forward(x)`, without the search for hooks, while a model decodes.

A token of a small model is a few hundred calls of Python functions. `nn.Module` adds two to each call of a module, and
one to each look at a submodule or parameter. Both are taken out of the instances of a model that only decodes, and
common modules get the functions of `short_calls`.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from torch import nn

from kinfolk.decoding.engines.short_calls import has_hooks, short_call


def call_directly(model: nn.Module) -> list[nn.Module]:
    """Let the modules of a model call `forward` at once; return those that changed.

    A module with hooks, or a compiled one, stays as it is, and every module does while hooks are registered for all
    modules (profilers, counters of operations). Hooks registered later are not called. Submodules and parameters become
    plain attributes too; assigning others to their names replaces them as before.
    """
    changed: list[nn.Module] = []
    if nn.modules.module._has_any_global_hook():
        return changed
    for module in model.modules():
        kind: Any = type(module)
        own = vars(module)
        if not has_hooks(module) and "_kinfolk_direct" not in vars(kind):
            changed.append(module)
            module.__class__ = _direct(kind, tuple(short_call(module).items()))
            own.update(own["_modules"])
            own.update(own["_parameters"])
    return changed


@contextlib.contextmanager
def direct_calls(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Call modules directly inside, and as usual afterwards; gives the modules that changed.

    What replaces their submodules and parameters in `vars` inside is forgotten too.
    """
    changed = call_directly(model)
    try:
        yield changed
    finally:
        for module in changed:
            module.__class__ = type(module).__mro__[1]
            own = vars(module)
            for name in (*own["_modules"], *own["_parameters"]):
                own.pop(name, None)


@functools.cache
def _direct(kind: Any, short: tuple[tuple[str, Any], ...]) -> Any:
    """Return the class whose instances call `forward` at once, or the functions of a short call."""
    names = {"__call__": kind.forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names | dict(short) | {"_kinfolk_direct": True})
