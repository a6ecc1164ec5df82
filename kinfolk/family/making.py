"""Recipes by name: a relative at a size, with overrides of its numbers and fields."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from kinfolk.core.errors import SpecError, suggest
from kinfolk.core.paths import Written, set_path, split
from kinfolk.family.about import About
from kinfolk.family.changes import like, parted, with_kind
from kinfolk.family.recipe import Recipe
from kinfolk.family.registry import entry, relatives
from kinfolk.family.sizes import DEFAULT_SIZE, SIZES, fit


def make(name: str, size: str = DEFAULT_SIZE, **overrides: Any) -> Recipe:
    """Return the recipe of a relative, or of one with changes: `gpt2+rotary+n_layers=4` (`kinfolk.family.changes`).

    An override is a number of the relative's own function (`n_layers=4`) or a dotted path into the recipe
    (`**{"model.dropout": 0.1}`), applied in that order.
    """
    base, changes = parted(name)
    if changes:
        return _variant(base, changes, size, overrides)
    function = entry(name).function
    if size not in SIZES:
        raise SpecError(f"size: unknown {size!r}{suggest(size, SIZES)}")
    known = numbers_of(function)
    dotted = {key: value for key, value in overrides.items() if "." in key or "[" in key}
    own = {key: value for key, value in overrides.items() if key not in dotted}
    for key in own:
        if key not in known:
            raise SpecError(f"{name}: unknown number {key!r}{suggest(key, known)}")
    numbers = {key: value for key, value in SIZES[size].numbers.items() if key in known}
    recipe: Recipe = function(**(numbers | own))
    recipe = recipe.replace(training=fit(recipe.training, SIZES[size]))
    for path, value in dotted.items():
        recipe = set_path(recipe, path, value)
    return recipe.settled()


def about(name: str) -> About:
    """Return what is known of a relative, or of one with changes (`gpt2+rotary`), whose parent is the plain one."""
    base, changes = parted(name)
    if not changes:
        return entry(name).about
    make(name)  # refuses a change that does not exist
    return dataclasses.replace(entry(base).about, name=name, parent=base, changes=", ".join(changes))


def _variant(base: str, changes: Sequence[str], size: str, overrides: Mapping[str, Any]) -> Recipe:
    """Return a relative with changes in the order given; numbers come first, because a relative is made of them."""
    numbers, paths = divided([text for text in changes if "=" in text], numbers_of(entry(base).function), base)
    recipe = make(base, size, **(numbers | dict(overrides)))
    known = relatives()
    for change in (text for text in changes if "=" not in text):
        elder = entry(change).about.parent if change in known else None
        if elder is not None:
            shared = {key: value for key, value in numbers.items() if key in numbers_of(entry(change).function)}
            recipe = like(recipe, make(elder, size, **_fitting(elder, shared)), make(change, size, **shared))
        else:
            recipe = with_kind(recipe, change)
    return recipe.assigned(paths).replace(name="+".join((base, *changes))).settled()


def _fitting(name: str, numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in numbers.items() if key in numbers_of(entry(name).function)}


def divided(assignments: Sequence[str], known: Mapping[str, Any], name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Divide `--set` into numbers of a relative (`n_layers=4`) and paths into its recipe (`model.dropout=0.1`)."""
    pairs = [split(text) for text in assignments]
    fields = [field.name for field in dataclasses.fields(Recipe)]
    for path, _ in pairs:
        if not set(path) & set(".[") and path not in (*known, *fields):
            raise SpecError(f"--set {path}: {name} has no such number{suggest(path, [*known, *fields])}")
    numbers = {path: Written(text).read() for path, text in pairs if path in known}
    return numbers, tuple(f"{path}={text}" for path, text in pairs if path not in known)


def numbers_of(function: Any) -> dict[str, Any]:
    """Return the numbers a relative takes and their defaults; one that passes `**numbers` on takes its parent's."""
    found: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            for name, default in numbers_of(_passes_on_to(function)).items():
                found.setdefault(name, default)
        else:
            found[parameter.name] = parameter.default
    return found


def _passes_on_to(function: Any) -> Any:
    """Return the function of the parent relative, which is where `**numbers` goes."""
    from kinfolk.family.registry import entries

    mine = next(e.about for e in entries().values() if e.function is function)
    if mine.parent is None:
        raise SpecError(f"{mine.name} passes numbers on, but has no parent to pass them to")
    return entry(mine.parent).function
