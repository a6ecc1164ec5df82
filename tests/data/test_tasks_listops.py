"""ListOps: right by another evaluator, within its limits, distributed as published."""

import statistics
from collections import Counter
from typing import Any

import numpy as np
import pytest

from kinfolk.data import open_data


def questions(name: str, n: int, part: str = "train") -> list[tuple[str, int]]:
    data = open_data(name)
    split: Any = data.split(part)
    return [(data.tokenizer.decode(ids), label) for ids, label in split.examples(np.arange(n))]


class Reader:
    """A recursive parser of the written list that computes as it reads; nothing of it is shared with the generator."""

    def __init__(self, text: str) -> None:
        self.words, self.deepest, self.operators, self.arguments = text.split(), 0, Counter(), Counter()
        self.value = self.read(1)
        assert not self.words, "something stands behind the end"

    def read(self, depth: int) -> int:
        self.deepest = max(self.deepest, depth)
        word = self.words.pop(0)
        if word.isdigit():
            return int(word)
        values = []
        while self.words[0] != "]":
            values.append(self.read(depth + 1))
        self.words.pop(0)
        self.operators[word] += 1
        self.arguments[len(values)] += 1
        compute = {"[MIN": min, "[MAX": max, "[SM": lambda v: sum(v) % 10, "[MED": lambda v: int(statistics.median(v))}
        return compute[word](values)


@pytest.mark.parametrize(
    "name", ["listops", "listops:length=60,shortest=10", "listops:length=400,depth=4,arguments=30"]
)
@pytest.mark.parametrize("part", ["train", "valid"])
def test_labels_are_what_another_evaluator_computes(name: str, part: str) -> None:
    for text, label in questions(name, 60, part):
        assert Reader(text).value == label


def test_the_published_limits_and_statistics() -> None:
    found = questions("listops", 800)
    lengths = [len(text.split()) for text, _ in found]
    assert min(lengths) > 500
    assert max(lengths) < 2000
    # published grammar, many trials: 1,037 tokens on average
    assert statistics.fmean(lengths) == pytest.approx(1037, abs=50)
    readers = [Reader(text) for text, _ in found[:120]]
    assert max(reader.deepest for reader in readers) == 10
    operators = sum((reader.operators for reader in readers), Counter[str]())
    assert set(operators) == {"[MIN", "[MAX", "[MED", "[SM"}
    assert min(operators.values()) > 0.95 * max(operators.values())
    arguments = sum((reader.arguments for reader in readers), Counter[int]())
    assert set(arguments) == set(range(2, 11))
    assert min(arguments.values()) > 0.6 * max(arguments.values())
    # the ends are the likeliest answers, because MIN and MAX of many digits are
    labels = Counter(label for _, label in found)
    assert labels[0] + labels[9] > 0.25 * len(found)
    assert max(labels.values()) < 0.25 * len(found)


def test_trees_are_those_of_the_grammar() -> None:
    """Draw the same trees in the plainest way, and compare how often each of the small ones occurs."""
    drawn = Counter(len(text.split()) for text, _ in questions("listops:length=20,shortest=0,depth=3", 4000))
    random = np.random.default_rng(0)

    def size(depth: int) -> int:
        if depth < 3 and random.random() < 0.25:
            return 2 + sum(size(depth + 1) for _ in range(random.integers(2, 11)))
        return 1

    sizes = Counter(n for n in (size(1) for _ in range(40_000)) if 0 < n < 20)
    total = sum(sizes.values())
    for n in range(1, 20):
        # 4,000 draws: four standard deviations
        share = sizes[n] / total
        assert drawn[n] / 4000 == pytest.approx(share, abs=4 * (share * (1 - share) / 4000) ** 0.5 + 0.01)
