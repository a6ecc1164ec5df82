"""Fields state what they allow; one check refuses the rest, wherever a spec is made."""

import math
from typing import Annotated, Literal

import pytest

import kinfolk as kf
from kinfolk.core.bounds import Bounds, FiniteFloat, NonNegativeInt, PositiveInt, Rate, problem
from kinfolk.core.errors import SpecError
from kinfolk.core.paths import assign, set_path
from kinfolk.core.plain import from_plain, loads
from kinfolk.core.spec import Spec

Colour = Literal["red", "green"]


class Inner(Spec):
    n: PositiveInt = 1
    share: Rate = 0.0
    colours: tuple[Colour, ...] = ("red",)


class Outer(Spec):
    inner: Inner = Inner()
    colour: Literal["blue", Colour] = "blue"
    bias: FiniteFloat = 0.0
    steps: tuple[NonNegativeInt, ...] = ()
    half: Annotated[float, Bounds(0, 0.5, open_low=True)] = 0.5

    def __post_init__(self) -> None:
        # never asks its parent, and divides by what has been checked
        assert 1 / self.inner.n


WRONG = [
    (Inner, "n", 0, "n: 0 is not allowed; at least 1"),
    (Inner, "n", True, "n: expected int, got True"),
    (Inner, "n", 2.0, "n: expected int, got 2.0"),
    (Inner, "n", 2**31, "n: 2147483648 is not allowed; at most 2147483647"),
    (Inner, "n", 10**5000, "n: an integer of 16610 bits is not allowed"),
    (Inner, "share", 1.0, "share: 1.0 is not allowed; at least 0 and below 1"),
    (Inner, "share", math.nan, "share: nan is not allowed; a finite number"),
    (Inner, "colours", ("red", "gren"), r"colours\[1\]: unknown 'gren'; did you mean 'green'\? \(known: green, red\)"),
    (Outer, "colour", "rad", r"colour: unknown 'rad'; did you mean 'red'\? \(known: blue, green, red\)"),
    (Outer, "colour", 3, "colour: unknown 3"),
    (Outer, "bias", math.inf, "bias: inf is not allowed; a finite number"),
    (Outer, "bias", 10**400, "bias: an integer of|bias: 1000"),
    (Outer, "steps", (0, -1), r"steps\[1\]: -1 is not allowed; at least 0"),
    (Outer, "steps", 3, "steps: expected a list, got 3"),
    (Outer, "half", 0.0, "half: 0.0 is not allowed; above 0 and at most 0.5"),
    (Outer, "inner", "x", "inner: expected "),
]


@pytest.mark.parametrize(
    ("cls", "name", "value", "said"), WRONG, ids=[f"{name}-{i}" for i, (_, name, *_) in enumerate(WRONG)]
)
def test_a_wrong_value_is_refused_by_name(cls, name, value, said):
    with pytest.raises(SpecError, match=said):
        cls(**{name: value})
    with pytest.raises(SpecError, match=said):
        cls().replace(**{name: value})
    plain = list(value) if isinstance(value, tuple) else value
    with pytest.raises(SpecError, match=rf"run\.toml\.{said.replace('|bias', '|run.toml.bias')}"):
        from_plain(cls, {name: plain}, "run.toml")


def test_paths_name_the_place():
    with pytest.raises(SpecError, match=r"^inner\.n: 0 is not allowed; at least 1$"):
        assign(Outer(), ["inner.n=0"])
    with pytest.raises(SpecError, match=r"^inner\.colours\[1\]: unknown 'x'"):
        set_path(Outer(), "inner.colours", ["red", "x"])
    with pytest.raises(SpecError, match=r"^spec\.inner\.share: -0\.5 is not allowed"):
        loads(Outer, "inner = {share = -0.5}")
    assert assign(Outer(), ["inner.n=3", "colour=red", "steps=[1, 2]"]).steps == (1, 2)


def test_text_is_no_list_and_deep_tables_are_refused():
    with pytest.raises(SpecError, match=r"colours: expected a list, got 'red'"):
        from_plain(Inner, {"colours": "red"})


def test_a_default_that_its_field_refuses_is_found():
    class Wrong(Spec):
        n: PositiveInt = 0

    with pytest.raises(SpecError, match=r"Wrong\.n: the default: 0 is not allowed"):
        Wrong()


def test_bounds_say_themselves():
    assert [str(Bounds(1)), str(Bounds(0, 1, open_high=True)), str(Bounds())] == [
        "at least 1",
        "at least 0 and below 1",
        "any finite number",
    ]
    assert problem(0.5, float) == problem(1, float) == problem(None, Inner | None) == ""


@pytest.mark.parametrize(
    "assignment",
    [
        "model.embedding.scale=bogus",
        "model.init.branches=bogus",
        "model.dropout=-0.1",
        "model.dropout=1.5",
        "model.decoder.blocks[*].parts[0].n_heads=0",
        "model.decoder.blocks[*].parts[1].d_ff=0",
        "model.decoder.blocks[*].parts[0].pattern={kind = 'window', left = -1}",
        "training.clip=nan",
        "training.optimiser.lr=inf",
        "training.schedule.warmup=nan",
        "training.schedule.floor=-5.0",
    ],
)
def test_nonsense_of_a_relative_is_refused_with_its_path(assignment):
    path = assignment.partition("=")[0].replace("[*]", r"\[0\]").replace("s[1]", r"s\[1\]").replace("s[0]", r"s\[0\]")
    with pytest.raises(SpecError, match=rf"^{path}"):
        assign(kf.relative("gpt2", size="tiny"), [assignment])
