"""Dotted paths: reading, setting with the declared type, and comparing two specs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.core import paths
from kinfolk.core.errors import SpecError
from kinfolk.core.paths import assign, diff, get, set_path, show
from kinfolk.core.spec import Spec


class Wheel(Spec):
    """An axis."""


class Spoked(Wheel, kind="spoked"):
    spokes: int = 32
    tension: float = 1.0


class Solid(Wheel, kind="solid"):
    """A kind without fields."""


class Rim(Wheel, kind="rim"):
    width: int


class Bell(Spec):
    """Something that is no wheel, with its own field."""

    loud: bool = False


class Bag(Spec):
    """An axis whose kinds include `none`."""


class NoBag(Bag, kind="none"): ...


class Pannier(Bag, kind="pannier"):
    litres: int = 20


class Bike(Spec):
    name: str = "bike"
    wheels: tuple[Wheel, ...] = (Spoked(), Spoked())
    extra: tuple[Spec, ...] = ()
    spare: Wheel | None = None
    bag: Bag | None = None
    bell: Bell = Bell()
    gears: tuple[int, ...] = (1, 2)
    limit: float | None = None

    def __post_init__(self) -> None:
        if len(self.wheels) < 2:
            raise SpecError("a bike has two wheels")


def test_get_follows_names_and_indices():
    bike = Bike(wheels=(Spoked(spokes=28), Solid()))
    assert get(bike, "name") == "bike"
    assert get(bike, "wheels[0].spokes") == 28
    assert get(bike, "wheels[-1]") == Solid()
    assert get(bike, "gears[1]") == 2
    assert get(bike, "wheels[*].spokes") == (28,)
    assert get(bike, "gears[*]") == (1, 2)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nam", r"^nam: Bike has no such field; did you mean 'name'\?"),
        ("wheels[0].spoke", r"^wheels\[0\]\.spoke: spoked has no such field; did you mean 'spokes'\?"),
        ("wheels[2]", r"^wheels\[2\]: out of range, there are 2"),
        ("wheels[-3]", r"^wheels\[-3\]: out of range"),
        ("wheels.spokes", r"^wheels\.spokes: wheels is a list of 2; say which: \[0\] … \[1\], or \[\*\]"),
        ("spare.spokes", r"^spare\.spokes: spare is none, which has no fields"),
        ("name[0]", r"^name: is bike, not a list"),
        ("wheels[*].colour", r"^wheels\[0\]\.colour: spoked has no such field"),
        ("extra[*].loud", r"^extra: is empty"),
        ("wheels[x]", r"^'wheels\[x\]': not a path at '\[x\]'"),
        ("[0]", r"not a path at '\[0\]'"),
        ("a..b", r"not a path at '\.\.b'"),
        ("", r"a path is empty"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_ends(path, message):
    with pytest.raises(SpecError, match=message):
        get(Bike(), path)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("name=fixie", "name", "fixie"),
        ('name="two words"', "name", "two words"),
        ("name=7", "name", "7"),
        ("name=true", "name", "true"),
        ("wheels[0].spokes=28", "wheels[0].spokes", 28),
        ("wheels[0].tension=2", "wheels[0].tension", 2.0),
        ("wheels[-1].tension = 1e-3", "wheels[1].tension", 1e-3),
        ("wheels[1]=solid", "wheels[1]", Solid()),
        ('spare={kind="rim", width=3}', "spare", Rim(width=3)),
        ("spare=spoked", "spare", Spoked()),
        ("spare=none", "spare", None),
        ("bag=none", "bag", NoBag()),
        ("bell.loud=true", "bell.loud", True),
        ("gears=[3, 4, 5]", "gears", (3, 4, 5)),
        ("gears[0]=9", "gears", (9, 2)),
        ("limit=25", "limit", 25.0),
        ("limit=none", "limit", None),
        ("wheels[*]=solid", "wheels", (Solid(), Solid())),
    ],
)
def test_values_take_the_type_the_field_declares(text, path, value):
    start = Bike(spare=Solid(), bag=Pannier(), limit=1.0)
    found = get(assign(start, [text]), path)
    assert (found, type(found)) == (value, type(value))


def test_assignments_are_applied_in_order_and_leave_the_rest_alone():
    start = Bike()
    changed = assign(start, ["spare=spoked", "spare.spokes=20", "name=x"])
    assert changed == Bike(name="x", spare=Spoked(spokes=20))
    assert start == Bike()
    assert set_path(start, "spare", Rim(width=2)).spare == Rim(width=2)


def test_a_star_changes_every_element_that_has_the_field():
    bike = Bike(wheels=(Spoked(), Solid(), Spoked(spokes=3)))
    assert assign(bike, ["wheels[*].spokes=8"]).wheels == (Spoked(spokes=8), Solid(), Spoked(spokes=8))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wheels[0].spokes=many", r"^wheels\[0\]\.spokes: expected int, got 'many'"),
        ("wheels[0].spokes=1.5", r"^wheels\[0\]\.spokes: expected int, got 1\.5"),
        ("wheels[0]=spokd", r"^wheels\[0\]: unknown kind 'spokd'; did you mean 'spoked'"),
        ("wheels[0]=rim", r"^wheels\[0\]\.width: missing"),
        ('wheels[0]={kind="rim", with=3}', r"wheels\[0\]\.with: unknown key; did you mean 'width'"),
        ("wheels[0]=none", r"^wheels\[0\]: unknown kind 'none'"),
        ('wheels=[{kind="solid"}]', r"^wheels: a bike has two wheels"),
        ("wheels", r"^--set wheels: expected path=value"),
        ("=3", r"expected path=value"),
        ("name=", r"expected path=value"),
    ],
)
def test_a_value_that_does_not_fit_is_named(text, message):
    with pytest.raises(SpecError, match=message):
        assign(Bike(), [text])


def test_text_with_a_line_break_is_no_second_key():
    assert paths.Written("1\nother = 2").read() == "1\nother = 2"


def test_diff_lists_paths_and_values():
    a = Bike()
    b = Bike(name="b", wheels=(Spoked(spokes=3), Solid()), spare=Solid(), gears=(1, 2, 3))
    assert diff(a, a) == []
    assert diff(a, b) == [
        ("name", "bike", "b"),
        ("wheels[0].spokes", 32, 3),
        ("wheels[1]", Spoked(), Solid()),
        ("spare", None, Solid()),
        ("gears", (1, 2), (1, 2, 3)),
    ]


def test_diff_says_a_change_of_neighbours_once():
    a = Bike(wheels=(Spoked(),) * 4)
    assert diff(a, a.replace(wheels=(Spoked(spokes=8),) * 4)) == [("wheels[*].spokes", 32, 8)]
    some = a.replace(wheels=(Spoked(), Spoked(spokes=8), Spoked(spokes=8), Spoked()))
    assert diff(a, some) == [("wheels[1:3].spokes", 32, 8)]
    assert diff(a, a.replace(wheels=(Spoked(),) * 6)) == [("wheels[4:6]", None, Spoked())]
    assert diff(a, a.replace(wheels=(Solid(), *a.wheels))) == [("wheels[0]", None, Solid())]
    assert diff(a.replace(wheels=(Spoked(), Rim(width=1), Spoked())), a.replace(wheels=(Spoked(),) * 2)) == [
        ("wheels[1]", Rim(width=1), None)
    ]
    assert diff(
        a.replace(wheels=(Rim(width=1), Solid(), Spoked())), a.replace(wheels=(Rim(width=1), Spoked(spokes=1)))
    ) == [
        ("wheels[2].spokes", 32, 1),
        ("wheels[1]", Solid(), None),
    ]


@given(st.lists(st.sampled_from([Spoked(), Spoked(spokes=1), Solid(), Rim(width=1)]), min_size=2, max_size=5))
def test_setting_what_differs_makes_equal(wheels):
    a, b = Bike(wheels=(Spoked(),) * len(wheels)), Bike(wheels=tuple(wheels))
    for path, _, new in diff(a, b):
        start, _, end = path.partition(":")
        # a span such as wheels[1:3].spokes is set element by element
        if end:
            name, first = start.split("[")
            last, rest = end.split("]", 1)
            for i in range(int(first), int(last)):
                a = set_path(a, f"{name}[{i}]{rest}", new)
        else:
            a = set_path(a, path, new)
    assert a == b


def test_show_is_short():
    assert show(Spoked()) == "spoked"
    assert show(Spoked(spokes=3)) == "spoked(spokes=3)"
    assert show(Bell(loud=True)) == "Bell(loud=true)"
    assert show((Solid(), Solid(), Rim(width=2))) == "(2 × solid, rim(width=2))"
    assert show((0.0001, None, "x")) == "(0.0001, none, x)"
    assert show((0, 1, 2, 3)) == "(0 … 3)"
    assert show((0, 0, 0, 1)) == "(3 × 0, 1)"


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        ("wheels[0,2].spokes", [0, 2]),
        ("wheels[0, -1].spokes", [0, 4]),
        ("wheels[1:3].spokes", [1, 2]),
        ("wheels[:2].spokes", [0, 1]),
        ("wheels[-2:].spokes", [3, 4]),
        ("wheels[::2].spokes", [0, 2, 4]),
        ("wheels[:].spokes", [0, 1, 2, 3, 4]),
    ],
)
def test_several_elements_by_number_or_slice(path, changed):
    bike = Bike(wheels=(Spoked(),) * 5)
    after = assign(bike, [f"{path}=7"])
    assert [i for i, wheel in enumerate(after.wheels) if wheel.spokes == 7] == changed
    assert get(after, path) == (7,) * len(changed)


def test_what_a_difference_is_called_can_be_set():
    """`diff` writes `[1:3]`, and a path of that form is read."""
    before = Bike(wheels=(Spoked(),) * 5)
    after = assign(before, ["wheels[1:3].spokes=9"])
    (found,) = diff(before, after)
    assert assign(before, [f"{found.path}={found.b}"]) == after


@pytest.mark.parametrize(
    ("path", "said"),
    [("wheels[0,9].spokes", r"wheels\[9\]: out of range"), ("wheels[5:].spokes", "is empty, there are 5")]
    + [(f"wheels{bad}.spokes", "not a path") for bad in ("[]", "[1,]", "[a:b]", "[::0]", "[1;2]")],
)
def test_several_that_are_not_there_are_refused(path, said):
    with pytest.raises(SpecError, match=said):
        assign(Bike(wheels=(Spoked(),) * 5), [f"{path}=7"])
