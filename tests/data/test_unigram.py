from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.data.tokenizers.unigram import Lattice, learn_unigram

PIECES = [b"a", b"b", b"c", b"ab", b"ba", b"abc", b"cc", b"aba"]
PROBABILITY = np.array([0.2, 0.1, 0.05, 0.2, 0.15, 0.1, 0.1, 0.1])

strings = st.lists(st.text("abc", min_size=1, max_size=7).map(str.encode), min_size=1, max_size=6)


def ways(string: bytes) -> list[list[int]]:
    """Return every way to write a string as pieces, by trying all cuts."""
    found = []
    for n in range(len(string)):
        for cuts in combinations(range(1, len(string)), n):
            parts = [string[i:j] for i, j in zip((0, *cuts), (*cuts, len(string)), strict=True)]
            if all(part in PIECES for part in parts):
                found.append([PIECES.index(part) for part in parts])
    return found


@given(strings)
def test_the_best_way_is_the_best_of_all_ways(texts: list[bytes]) -> None:
    expected = [max(PROBABILITY[way].prod() for way in ways(text)) for text in texts]
    assert Lattice(texts, PIECES).best(PROBABILITY) == pytest.approx(expected)


@given(strings)
def test_expected_counts_are_the_average_over_all_ways(texts: list[bytes]) -> None:
    expected = np.zeros(len(PIECES))
    for i, text in enumerate(texts):
        weights = np.array([PROBABILITY[way].prod() for way in ways(text)])
        for way, weight in zip(ways(text), weights / weights.sum(), strict=True):
            np.add.at(expected, way, weight * (i + 1))
    counts = np.arange(1.0, len(texts) + 1)
    assert Lattice(texts, PIECES).expected_counts(PROBABILITY, counts) == pytest.approx(expected)


@given(strings)
def test_forgotten_pieces_are_not_used(texts: list[bytes]) -> None:
    kept = np.array([0, 1, 2, 4])
    lattice = Lattice(texts, PIECES)
    lattice.keep(kept)
    again = Lattice(texts, [PIECES[i] for i in kept])
    assert lattice.best(PROBABILITY[kept]) == pytest.approx(again.best(PROBABILITY[kept]))


def test_alternatives_leave_out_the_piece_itself() -> None:
    best = Lattice(PIECES, PIECES, whole=False).best(PROBABILITY)
    assert best[0] == 0
    assert best[PIECES.index(b"ab")] == pytest.approx(0.2 * 0.1)
    assert best[PIECES.index(b"aba")] == pytest.approx(max(0.2 * 0.2, 0.2 * 0.15))


def test_frequent_words_become_pieces() -> None:
    words = {b" hello": 500, b" world": 300, b" help": 100, b"xyzzy": 1}
    learned = learn_unigram(words, 256 + 12)
    pieces = [piece for piece, _ in learned]
    assert pieces[:256] == [bytes([byte]) for byte in range(256)]
    assert {b" hello", b" world"} <= set(pieces)
    assert len(pieces) == len(set(pieces)) <= 268


def test_the_likeliest_come_first_and_probabilities_sum_to_one() -> None:
    words = {b"abab": 9, b"abc": 5, b"cab": 2, b"bcbc": 7}
    learned = learn_unigram(words, 270)
    scores = [score for _, score in learned[256:]]
    assert scores == sorted(scores, reverse=True)
    assert sum(np.exp(score) for _, score in learned) == pytest.approx(1, abs=1e-4)


def test_the_order_of_the_words_does_not_matter() -> None:
    words = {f"w{i % 37}{i}".encode(): i % 11 + 1 for i in range(300)}
    backwards = dict(reversed(words.items()))
    assert learn_unigram(words, 330) == learn_unigram(backwards, 330)
