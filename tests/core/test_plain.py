"""Specs to plain data, TOML, and back; what is wrong is named by its path."""

import pytest

from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, from_plain, load, loads, to_plain
from kinfolk.core.spec import Spec, field_types


class Fruit(Spec):
    """An axis."""


class Apple(Fruit, kind="apple"):
    weight: float
    red: bool = True


class Pear(Fruit, kind="pear"):
    ripe: int = 1


class Basket(Spec):
    name: str
    fruits: tuple[Fruit, ...]
    best: Fruit | None = None
    spare: Apple | None = None

    def __post_init__(self) -> None:
        if not self.fruits:
            raise SpecError("a basket holds at least one fruit")


BASKET = Basket(name="b", fruits=(Apple(weight=0.5), Pear(ripe=3)), best=Pear())


def test_round_trip_through_plain_data_and_toml():
    plain = to_plain(BASKET)
    assert plain == {
        "name": "b",
        "fruits": [{"kind": "apple", "weight": 0.5, "red": True}, {"kind": "pear", "ripe": 3}],
        "best": {"kind": "pear", "ripe": 1},
    }
    assert from_plain(Basket, plain) == BASKET
    assert loads(Basket, dumps(BASKET)) == BASKET


def test_a_whole_number_is_a_float_but_nothing_else_is_converted():
    weighed = from_plain(Apple, {"weight": 1})
    assert (weighed.weight, type(weighed.weight)) == (1.0, float)
    for field, value in [("weight", "1"), ("weight", True), ("red", 1)]:
        with pytest.raises(SpecError, match=rf"^apple\.{field}: expected \w+, got "):
            from_plain(Apple, {"weight": 1.0, field: value}, "apple")
    with pytest.raises(SpecError, match=r"ripe: expected int, got True"):
        from_plain(Pear, {"ripe": True})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fruits": [{"kind": "aple", "weight": 1.0}]}, r"^b\.fruits\[0\]: unknown kind 'aple'; did you mean 'apple'"),
        ({"fruits": [{"weight": 1.0}]}, r"^b\.fruits\[0\]: kind is missing .*\(known: apple, pear\)"),
        ({"fruits": [{"kind": "pear", "rip": 2}]}, r"^b\.fruits\[0\]\.rip: unknown key; did you mean 'ripe'"),
        ({"fruits": [{"kind": "apple"}]}, r"^b\.fruits\[0\]\.weight: missing"),
        ({"fruits": [3]}, r"^b\.fruits\[0\]: expected a table for Fruit, got 3"),
        ({"best": {"kind": "pear", "ripe": "x"}}, r"^b\.best\.ripe: expected int, got 'x'"),
        ({"spare": {"kind": "pear"}}, r"^b\.spare: expected kind 'apple', got 'pear'"),
        ({"fruits": []}, r"^b: a basket holds at least one fruit"),
        ({"nam": "x"}, r"^b\.nam: unknown key; did you mean 'name'"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(change, message):
    with pytest.raises(SpecError, match=message):
        from_plain(Basket, to_plain(BASKET) | change, "b")


def test_every_problem_is_told_at_once():
    with pytest.raises(SpecError) as caught:
        from_plain(Basket, {"name": 3, "fruits": [{"kind": "pear", "ripe": "x"}]})
    assert str(caught.value).splitlines() == [
        "spec.name: expected str, got 3",
        "spec.fruits[0].ripe: expected int, got 'x'",
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    file = tmp_path / "spec.toml"
    with pytest.raises(SpecError, match=r"spec\.toml: cannot be read"):
        load(Basket, file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"spec\.toml: cannot be read"):
        load(Basket, file)
    file.write_text("\nname = = 3")
    with pytest.raises(SpecError, match=r"spec\.toml: not valid TOML: .*line 2"):
        load(Basket, file)
    file.write_text(dumps(BASKET))
    assert load(Basket, file) == BASKET


def test_field_types_are_resolved():
    assert field_types(Pear) == {"ripe": int}
    assert field_types(Basket)["fruits"] == tuple[Fruit, ...]
