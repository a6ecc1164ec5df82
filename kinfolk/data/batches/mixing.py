"""Counter-based randomness on whole arrays: a hash of (seed, numbers), and a permutation that needs no memory.

Both are pure functions, so any example of any epoch is found without drawing the ones before it.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6


def mix(seed: int, *numbers: int | NDArray[np.integer]) -> Words:
    """Hash integers, element by element with broadcasting, to uniform 64-bit words.

    Each number is folded in with one step of SplitMix64 (Steele et al. 2014); their order matters.
    """
    word = _scramble(np.asarray(seed & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64))
    with np.errstate(over="ignore"):
        for number in numbers:
            word = _scramble(word + (np.asarray(number).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return word


def fraction(words: Words) -> NDArray[np.float64]:
    """Turn hashes into numbers in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(words: Words, n: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn hashes into integers from 0 to n - 1."""
    return (words % np.asarray(n).astype(np.uint64)).astype(np.int64)


def permute(index: NDArray[np.int64], n: int, seed: int) -> NDArray[np.int64]:
    """Return where a seeded permutation of `range(n)` sends each index, in constant memory.

    A Feistel network shuffles the smallest even number of bits that holds `n`; results outside are fed in
    again until they fall inside (cycle walking), which keeps it a bijection. At most four tries on average.
    """
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    result = np.asarray(index, dtype=np.int64).copy()
    outside = np.ones(result.shape, dtype=bool)
    while outside.any():
        result[outside] = _feistel(result[outside].astype(np.uint64), half, seed).astype(np.int64)
        outside = result >= n
    return result


def _feistel(word: Words, half: np.uint64, seed: int) -> Words:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = word >> half, word & mask
    for turn in range(_ROUNDS):
        left, right = right, left ^ (mix(seed, turn, right) & mask)
    joined: Words = (left << half) | right
    return joined


def _scramble(word: Words) -> Words:
    with np.errstate(over="ignore"):
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        scrambled: Words = word ^ (word >> np.uint64(31))
    return scrambled
