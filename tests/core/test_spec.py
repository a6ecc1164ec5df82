"""Specs: values with a registry that fills itself."""

import dataclasses

import pytest

from kinfolk.core.errors import SpecError
from kinfolk.core.spec import Spec, axes_of, choices, is_axis


class Metal(Spec):
    """An axis."""


class Noble(Metal):
    """An axis on an axis."""


class Gold(Noble, kind="gold"):
    carats: int = 24


class Iron(Metal, kind="iron"):
    rust: float


class Ring(Spec):
    """No axis: there is only one kind of it."""

    metal: Metal
    stones: tuple[str, ...] = ()


def test_a_spec_is_a_frozen_keyword_only_value():
    assert Gold() == Gold(carats=24)
    assert hash(Ring(metal=Gold())) == hash(Ring(metal=Gold()))
    assert repr(Gold()) == "Gold(carats=24)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gold().carats = 9
    with pytest.raises(TypeError):
        Gold(9)


def test_a_kind_registers_on_every_axis_above_it():
    assert choices(Metal) == {"gold": Gold, "iron": Iron}
    assert choices(Noble) == {"gold": Gold}
    assert list(axes_of(Gold)) == [Noble, Metal]
    assert (is_axis(Metal), is_axis(Gold), is_axis(Ring)) == (True, False, False)


def test_replace_names_a_field_that_is_unknown():
    assert Gold().replace(carats=9) == Gold(carats=9)
    with pytest.raises(SpecError, match=r"Gold\.carat: unknown field; did you mean 'carats'\? \(known: carats\)"):
        Gold().replace(carat=9)


def test_a_kind_is_taken_once():
    with pytest.raises(SpecError, match=r"Fool: kind 'gold' of Metal is already Gold"):

        class Fool(Metal, kind="gold"): ...

    assert choices(Metal)["gold"] is Gold
