"""Every number of every kind, alone, at values that its type allows and its neighbours may not: refused, or built."""

import functools
from typing import Any

import pytest

import kinfolk as kf
from kinfolk.core.errors import KinfolkError, SpecError
from kinfolk.core.grid import Grid
from kinfolk.core.plain import from_plain
from kinfolk.core.spec import Spec, choices
from kinfolk.family.recipe import Recipe
from kinfolk.layers.module import Dims
from kinfolk.layers.positions.position import Position
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


def kinds() -> dict[tuple[str, str], tuple[str, tuple[Any, ...]]]:
    """Return (kind above, field) -> a relative that has a part there, and where; each place once over the family."""
    where: dict[tuple[str, str], tuple[str, tuple[Any, ...]]] = {}
    for name in NAMES:
        for path in places(name):
            *above, last = path
            part = functools.reduce(lambda value, key: value[key], path, plain(name))
            if isinstance(part, dict) and "kind" in part:
                owner = functools.reduce(lambda value, key: value[key], above, plain(name))
                kind = owner.get("kind", "") if isinstance(owner, dict) else "list"
                steps = [str(key) for key in path if isinstance(key, str)]
                where.setdefault((f"{steps[-2:]}:{kind}", str(last)), (name, path))
    return where


def others(kind: str) -> list[str]:
    """Return all kinds of the axes that know one."""
    return sorted({other for axis in Spec.__subclasses__() if kind in choices(axis) for other in choices(axis)})


@pytest.mark.long
def test_every_kind_of_an_axis_is_refused_or_built_wherever_the_axis_is():
    """Each place of the family with every other kind of its axis, with no more said than its name."""
    outcomes, failures = {"built": 0, "refused": 0}, []
    for place, (name, path) in kinds().items():
        part = functools.reduce(lambda value, key: value[key], path, plain(name))
        for kind in others(part["kind"]):
            data = copied(plain(name))
            functools.reduce(lambda value, key: value[key], path[:-1], data)[path[-1]] = {"kind": kind}
            try:
                kf.build(from_plain(Recipe, data, "spec"), seed=0)
                outcomes["built"] += 1
            except KinfolkError:
                outcomes["refused"] += 1
            except Exception as error:
                failures.append(f"{place} = {kind} of {name}: {error!r}")
    assert failures == []
    assert min(outcomes.values()) > 100, outcomes


@pytest.mark.parametrize("kind", sorted(choices(Position)))
def test_a_position_is_added_to_states_or_refused_by_model_and_cost_alike(kind):
    """A stack, an embedding and attention take the same axis: what needs heads says so where there are none."""
    needed = {"grid": {"grid": Grid(columns=8)}, "learned-at-depth": {"n_layers": 2}, "learned-steps": {"n": 2}}
    spec = choices(Position)[kind](**needed.get(kind, {}))
    dims = Dims(d_model=16, vocab_size=9, max_len=32, dropout=0.0, n_sublayers=2, direction="both")
    ends = []
    for asked in (spec.build, spec.cost):
        try:
            asked(dims)
            ends.append("")
        except SpecError as error:
            ends.append(str(error))
    assert ends[0] == ends[1]
    assert ends[0] == "" or ends[0].endswith("belongs to attention, not to an embedding")


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
