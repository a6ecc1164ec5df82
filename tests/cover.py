"""A seeded sample of the registry that has every kind of every axis.

Most properties of relatives are properties of the kinds that they are made of, so relatives with the same kinds are
interchangeable as cases. `sampled(NAMES, "decoding")` gives all of them to `pytest.mark.parametrize` and marks those
outside the sample `long`: `make test` runs the sample, `make long` the others. The sample is a greedy set cover over
the kinds of each relative's spec, its topology and its input. A kind that a new relative brings along is always in it.
One in ten of the others is added by lot. The seed is usually the property, so every relative is in some samples.
"""

import functools
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

import kinfolk as kf
from kinfolk.core.nested import nested
from kinfolk.family.recipe import Recipe
from kinfolk.layers.part import Part
from kinfolk.objectives.objective import Objective


def kinds_of(recipe: Recipe) -> frozenset[Hashable]:
    """Return the kinds of all specs inside a recipe, and its topology."""
    return frozenset({recipe.model.topology, *(type(spec) for _, spec in nested(recipe))})


@functools.cache
def kinds(name: str) -> frozenset[Hashable]:
    """Return the kinds inside a relative's recipe, its topology and its input."""
    return kinds_of(kf.relative(name, size="tiny")) | {kf.about(name).input}


@functools.cache
def parts(name: str) -> frozenset[Hashable]:
    """Return the kinds of layers and objectives inside a relative: features for tests that take a second or more."""
    return frozenset(kind for kind in kinds(name) if isinstance(kind, type) and issubclass(kind, Part | Objective))


def cover(features: Mapping[str, frozenset[Hashable]], seed: str) -> set[str]:
    """Choose few names that have all features together: again and again the one with most that are missing.

    One in ten of the others is added.
    """
    names = sorted(features)
    random.Random(seed).shuffle(names)
    missing, chosen = set().union(*features.values()), set()
    while missing:
        best = max(names, key=lambda name: len(features[name] & missing))
        chosen.add(best)
        missing -= features[best]
    others = [name for name in names if name not in chosen]
    return chosen | set(others[: len(others) // 10])


def sampled(
    names: Sequence[str],
    seed: str,
    features: Callable[[str], frozenset[Hashable]] = kinds,
    marks: Mapping[str, Sequence[pytest.MarkDecorator]] = MappingProxyType({}),
) -> list[Any]:
    """Return all names for `pytest.mark.parametrize`, those outside the sample marked `long`.

    marks: what some names are marked with besides. Names that are `long` themselves stand for nothing in the sample.
    """
    chosen = cover({name: features(name) for name in names if pytest.mark.long not in marks.get(name, ())}, seed)
    return [
        pytest.param(name, marks=[*marks.get(name, ()), *[pytest.mark.long] * (name not in chosen)]) for name in names
    ]
