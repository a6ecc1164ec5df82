"""A budget is read, written and turned into steps; what cannot be read is refused with examples."""

import pytest

from kinfolk.contests.budget import EXAMPLES, Budget, amount, duration, parse
from kinfolk.core.errors import SpecError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", Budget(90, "seconds")),
        ("10m", Budget(600, "seconds")),
        ("1h30m", Budget(5400, "seconds")),
        ("1h5s", Budget(3605, "seconds")),
        ("0.5m", Budget(30, "seconds")),
        ("2M-tokens", Budget(2e6, "tokens")),
        ("500k-tokens", Budget(5e5, "tokens")),
        ("500K tokens", Budget(5e5, "tokens")),
        ("2_000-tokens", Budget(2000, "tokens")),
        ("1-token", Budget(1, "tokens")),
        ("1e15-flops", Budget(1e15, "flops")),
        ("1.5e+9-flops", Budget(1.5e9, "flops")),
        ("3P-flops", Budget(3e15, "flops")),
    ],
)
def test_reads(text: str, expected: Budget) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("text", EXAMPLES.split(", "))
def test_every_example_of_the_error_is_readable_and_comes_back(text: str) -> None:
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text", ["", "10", "2M", "ten minutes", "10x-tokens", "0s", "0-tokens", "-5m", "1e999-flops", "m"]
)
def test_refuses_with_examples(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert EXAMPLES in str(caught.value)


def test_a_number_alone_is_told_that_its_unit_is_missing() -> None:
    with pytest.raises(SpecError, match="unit is missing"):
        parse("2M")


def test_tokens_become_steps() -> None:
    assert parse("10k-tokens").steps(64, None, None) == 156
    assert parse("1-tokens").steps(64, None, None) == 1


def test_flops_become_steps_through_the_cost_of_a_token() -> None:
    assert parse("1e9-flops").steps(100, 1e5, None) == 100
    with pytest.raises(SpecError, match="not known"):
        parse("1e9-flops").steps(100, None, None)


def test_seconds_become_steps_through_a_measurement() -> None:
    assert parse("1m").steps(100, None, 0.25) == 240
    with pytest.raises(SpecError, match="not known"):
        parse("1m").steps(100, None, None)


def test_a_whole_number_of_steps_survives_rounding() -> None:
    assert all(Budget(0.1 * n, "seconds").steps(1, None, 0.1) == n for n in range(1, 500))


def test_writes() -> None:
    assert [duration(s) for s in (0.5, 59, 60, 3600, 5400, 3661)] == ["0.5s", "59s", "1m", "1h", "1h30m", "1h1m1s"]
    assert [amount(n) for n in (7, 1500, 2.5e6, 3e9, 4e12)] == ["7", "1.5k", "2.5M", "3G", "4T"]
