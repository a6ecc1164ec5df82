"""Logical inference: relations by truth tables over the written formulas, and the published statistics."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from kinfolk.data import open_data
from kinfolk.data.generated.logic import RELATIONS, Logic, relation

WORLDS = [dict(zip("abcdef", bits, strict=True)) for bits in itertools.product([False, True], repeat=6)]
MIRRORED = {"<": ">", ">": "<"}


def pairs(name: str, n: int, part: str = "train") -> list[tuple[str, str, str]]:
    data = open_data(name)
    split: Any = data.split(part)
    decode = data.tokenizer.decode
    return [(decode(a), decode(b), RELATIONS[label]) for a, b, label in split.examples(np.arange(n))]


def parse(words: list[str]) -> Any:
    """Read `( left ( op right ) )`, `( not x )` or a variable as nested tuples."""
    word = words.pop(0)
    if word != "(":
        return word
    if words[0] == "not":
        words.pop(0)
        inner = parse(words)
        assert words.pop(0) == ")"
        return ("not", inner)
    left = parse(words)
    assert words.pop(0) == "("
    operator = words.pop(0)
    right = parse(words)
    assert [words.pop(0), words.pop(0)] == [")", ")"]
    return (operator, left, right)


def holds(formula: Any, world: dict[str, bool]) -> bool:
    if isinstance(formula, str):
        return world[formula]
    if formula[0] == "not":
        return not holds(formula[1], world)
    both = [holds(side, world) for side in formula[1:]]
    return all(both) if formula[0] == "and" else any(both)


def judge(a: str, b: str) -> str:
    """Compare two truth tables."""
    tables = [[holds(parse(text.split()), world) for world in WORLDS] for text in (a, b)]
    rows = set(zip(*tables, strict=True))
    assert all(0 < sum(table) < 64 for table in tables), "a side that says nothing"
    both, only_a, only_b, neither = (
        (x, y) in rows for x, y in ((True, True), (True, False), (False, True), (False, False))
    )
    named = {
        (True, False, False, True): "=",
        (True, False, True, True): "<",
        (True, True, False, True): ">",
        (False, True, True, False): "^",
        (False, True, True, True): "|",
        (True, True, True, False): "v",
    }
    return named.get((both, only_a, only_b, neither), "#")


def operators(text: str) -> int:
    return sum(text.split().count(word) for word in ("and", "or", "not"))


@pytest.mark.parametrize(
    ("name", "part"), [("logic", "train"), ("logic:fewest=8", "valid"), ("logic:operators=3", "longer")]
)
def test_relations_are_those_of_the_truth_tables(name: str, part: str) -> None:
    for a, b, label in pairs(name, 150, part):
        assert judge(a, b) == label
        # the other way round, and with a double negation, the relation is what it must be
        assert judge(b, a) == MIRRORED.get(label, label)
        assert judge(f"( not ( not {a} ) )", b) == label
        assert len({word for word in (a + b) if word in "abcdef"} - set("andort")) <= 4


def test_splits_are_by_the_number_of_operators() -> None:
    sizes = {
        part: [max(operators(a), operators(b)) for a, b, _ in pairs("logic:operators=6", 300, part)]
        for part in ("train", "valid", "longer")
    }
    assert set(sizes["train"]) == set(range(7))
    # no operator at all: so few questions that none need be held out
    assert set(sizes["valid"]) - {0} == set(range(1, 7))
    assert min(sizes["longer"]) == 7
    assert max(sizes["longer"]) >= 12
    assert "longer" not in open_data("logic").splits
    exact = [max(operators(a), operators(b)) for a, b, _ in pairs("logic:operators=9,fewest=9", 100)]
    assert set(exact) == {9}


def test_published_statistics() -> None:
    task = Logic()
    a, b = task.formulas(1, np.arange(20_000), valid=False)
    labels = np.bincount(relation(a.worlds, b.worlds), minlength=7) / 20_000
    assert labels[6] == pytest.approx(0.60, abs=0.03)
    assert labels[:6].min() > 0.035
    assert labels[:6].max() < 0.08
    size = np.minimum(12, np.maximum(a.operators, b.operators))
    share = np.bincount(size, minlength=13) / 20_000
    # bins 9 to 12 as published
    assert share[9:] == pytest.approx([0.030, 0.018, 0.012, 0.011], abs=0.005)
    long = np.bincount(relation(a.worlds, b.worlds)[size >= 6], minlength=7) / (size >= 6).sum()
    assert long[6] == pytest.approx(0.5, abs=0.05)
    assert max(long[0], long[3]) < 0.025


def test_a_pair_and_its_mirror_image_are_one_question() -> None:
    sides = {part: {frozenset(x[:2]) for x in pairs("logic:operators=1", 3000, part)} for part in ("train", "valid")}
    assert sides["train"].isdisjoint(sides["valid"])
    assert all(sides.values())


def test_negation_stands_where_a_third_of_the_draws_puts_it() -> None:
    words = Counter(word for a, b, _ in pairs("logic", 2000) for word in (*a.split(), *b.split()))
    assert words["and"] == pytest.approx(words["or"], rel=0.1)
    # every connective and every variable may be negated
    letters = sum(words[letter] for letter in "abcdef")
    assert words["not"] / (letters + words["and"] + words["or"]) == pytest.approx(1 / 3, abs=0.03)
    assert min(words[letter] for letter in "abcdef") > 0.8 * max(words[letter] for letter in "abcdef")
