"""Every number of every kind, alone, at values that its type allows and its neighbours may not: refused, or built."""

import functools
from typing import Any

import pytest

import kinfolk as kf
from kinfolk.core.errors import KinfolkError
from kinfolk.core.plain import from_plain
from kinfolk.family.recipe import Recipe
from tests.family.test_relatives import NAMES
from tests.fuzz.specs import copied, places, plain

VALUES = (1e-30, 1, *(pytest.param(value, marks=pytest.mark.long) for value in (0, 0.5, 7, 1000)))


def numbers() -> dict[tuple[str, str], tuple[str, tuple[Any, ...]]]:
    """Return (kind, field) -> a relative that has it, and where; each field once over the whole family."""
    where: dict[tuple[str, str], tuple[str, tuple[Any, ...]]] = {}
    for name in NAMES:
        for path in places(name):
            above = functools.reduce(lambda value, key: value[key], path[:-1], plain(name))
            value = above[path[-1]]
            if isinstance(above, dict) and isinstance(value, int | float) and not isinstance(value, bool):
                kind = f"{'.'.join(str(key) for key in path[:-1] if isinstance(key, str))}:{above.get('kind', '')}"
                where.setdefault((kind, str(path[-1])), (name, path))
    return where


@pytest.mark.parametrize("value", VALUES)
def test_a_number_is_refused_or_the_model_is_built(value):
    places_of = numbers()
    assert len(places_of) > 300
    outcomes = {"built": 0, "refused": 0}
    for field, (name, path) in places_of.items():
        data = copied(plain(name))
        functools.reduce(lambda place, key: place[key], path[:-1], data)[path[-1]] = value
        try:
            kf.build(from_plain(Recipe, data, "spec"), seed=0)
            outcomes["built"] += 1
        except KinfolkError:
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(f"{field} = {value} of {name}: {error!r}") from error
    assert min(outcomes.values()) > 10, outcomes
