"""Learn a unigram language model of pieces (Kudo 2018, section 3.2), the same one every time.

The trainer of the `tokenizers` library visits words in an order that changes from run to run, and learns other
pieces each time; this one is deterministic, and moves all words at once. Encoding is still the library's.

Start from the substrings that save most; repeat: two rounds of EM, then drop the quarter of the pieces that are
missed least, until `size` are left. Single bytes always stay.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.batches.mixing import mix

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LONGEST_PIECE = 16
# long enough for words, short enough that the probability of a word stays a normal number
LONGEST_WORD = 32
_MOST_BYTES = 4 << 20
_SEEDS = 10
_KEPT = 0.75
_FLOOR = 1e-9
_BYTES = [bytes([byte]) for byte in range(256)]


def learn_unigram(words: Mapping[bytes, int], size: int) -> list[tuple[bytes, float]]:
    """Return at most `size` pieces with their log-probabilities: the 256 bytes in order, then the likeliest first."""
    text, counts = _most_frequent(words)
    pieces = [*_BYTES, *_seeds(text, counts, _SEEDS * size)]
    lattice, alternatives = Lattice(text, pieces), Lattice(pieces, pieces, whole=False)
    probability = np.full(len(pieces), 1 / len(pieces))
    while True:
        for _ in range(2):
            expected = np.maximum(lattice.expected_counts(probability, counts), _FLOOR)
            probability = expected / expected.sum()
        if len(pieces) <= size:
            break
        missed = expected * np.log(probability / np.maximum(alternatives.best(probability), 1e-300))
        missed[:256] = np.inf
        ranked = np.argsort(-missed, kind="stable")[: max(size, int(_KEPT * len(pieces)))]
        kept = np.sort(ranked)
        pieces = [pieces[i] for i in kept]
        lattice.keep(kept)
        alternatives = Lattice(pieces, pieces, whole=False)
        probability = probability[kept] / probability[kept].sum()
    # rounding hides the last bits, which another processor may compute otherwise
    scored = [(piece, round(float(p), 6)) for piece, p in zip(pieces, np.log(probability), strict=True)]
    return scored[:256] + sorted(scored[256:], key=lambda item: (-item[1], item[0]))


class Lattice:
    """Every way to write many strings as pieces: an edge for each piece at each place where it fits.

    The edges are kept by (place, length). Of those a string has at most one, so one step of dynamic programming
    is plain array arithmetic over all strings. `whole=False` leaves out the edge that is the string itself.
    """

    def __init__(self, strings: Sequence[bytes], pieces: Sequence[bytes], *, whole: bool = True) -> None:
        self.n_pieces = len(pieces)
        self.lengths = np.array([len(string) for string in strings], np.int64)
        self.edges: dict[tuple[int, int], tuple[Ints, Ints]] = {}
        by_length = _by_key(pieces)
        for place, n, rows, keys in _places(strings):
            ids, sorted_keys = by_length.get(n, (np.zeros(0, np.int64), np.zeros(0, np.uint64)))
            places = np.searchsorted(sorted_keys, keys)
            inside = places < len(sorted_keys)
            inside[inside] = sorted_keys[places[inside]] == keys[inside]
            if not whole and place == 0:
                inside &= self.lengths[rows] > n
            self.edges[place, n] = rows[inside], ids[places[inside]]

    def keep(self, kept: Ints) -> None:
        """Forget all pieces but these, and number them anew."""
        renamed = np.full(self.n_pieces, -1)
        renamed[kept] = np.arange(len(kept))
        self.n_pieces = len(kept)
        for key, (rows, pieces) in self.edges.items():
            alive = renamed[pieces] >= 0
            self.edges[key] = rows[alive], renamed[pieces[alive]]

    def expected_counts(self, probability: Floats, counts: Floats) -> Floats:
        """Return how often each piece is used, over all ways to write each string: the E-step."""
        before = self._forward(probability, np.add)
        after = np.zeros_like(before)
        after[self.lengths, np.arange(len(self.lengths))] = 1
        per_way = counts / np.maximum(before[self.lengths, np.arange(len(self.lengths))], 1e-300)
        used, pieces = [np.zeros(0)], [np.zeros(0, np.int64)]
        for (place, n), (rows, ids) in sorted(self.edges.items(), reverse=True):
            through = probability[ids] * after[place + n, rows]
            after[place, rows] += through
            used.append(per_way[rows] * before[place, rows] * through)
            pieces.append(ids)
        return np.bincount(np.concatenate(pieces), np.concatenate(used), self.n_pieces).astype(np.float64)

    def best(self, probability: Floats) -> Floats:
        """Return the probability of the likeliest way to write each string (Viterbi)."""
        return self._forward(probability, np.maximum)[self.lengths, np.arange(len(self.lengths))]

    def _forward(self, probability: Floats, join: Callable[[Floats, Floats], Floats]) -> Floats:
        reached = np.zeros((int(self.lengths.max()) + 1, len(self.lengths)))
        reached[0] = 1
        # by place, so that one is complete before anything leaves it
        for (place, n), (rows, ids) in sorted(self.edges.items()):
            reached[place + n, rows] = join(reached[place + n, rows], reached[place, rows] * probability[ids])
        return reached


def _places(strings: Sequence[bytes]) -> Iterator[tuple[int, int, Ints, NDArray[np.uint64]]]:
    """Yield, for every place and length, the strings that have as many bytes there, and a hash of those bytes."""
    lengths = np.array([len(string) for string in strings], np.int64)
    longest = int(lengths.max())
    joined = b"".join(string.ljust(longest, b"\0") for string in strings)
    matrix = np.frombuffer(joined, np.uint8).reshape(len(strings), longest)
    for place in range(longest):
        rows = np.flatnonzero(lengths > place)
        keys = np.zeros(len(rows), np.uint64)
        for n in range(1, min(LONGEST_PIECE, longest - place) + 1):
            fits = lengths[rows] >= place + n
            rows, keys = rows[fits], keys[fits]
            keys = keys * np.uint64(0x100000001B3) ^ mix(n, matrix[rows, place + n - 1])
            yield place, n, rows, keys


def _by_key(pieces: Sequence[bytes]) -> dict[int, tuple[Ints, NDArray[np.uint64]]]:
    """Return, for every length, the pieces of that length sorted by hash."""
    by_length = {}
    for place, n, rows, keys in _places(pieces):
        if place == 0:
            exact = np.array([len(pieces[row]) == n for row in rows], bool)
            order = np.argsort(keys[exact], kind="stable")
            by_length[n] = rows[exact][order], keys[exact][order]
    return by_length


def _seeds(text: Sequence[bytes], counts: Floats, n_seeds: int) -> list[bytes]:
    """Return the substrings of two bytes and more that occur most, weighed by their length."""
    by_length: dict[int, list[tuple[int, Ints, NDArray[np.uint64]]]] = {}
    for place, n, rows, keys in _places(text):
        by_length.setdefault(n, []).append((place, rows, keys))
    candidates: list[tuple[float, bytes]] = []
    for n, found in by_length.items():
        if n == 1:
            continue
        places = np.concatenate([np.full(len(rows), place) for place, rows, _ in found])
        rows = np.concatenate([rows for _, rows, _ in found])
        _, first, which = np.unique(
            np.concatenate([keys for *_, keys in found]), return_index=True, return_inverse=True
        )
        often = np.bincount(which, counts[rows])
        best = np.argsort(-often, kind="stable")[:n_seeds]
        for i in best[often[best] > 1]:
            place = places[first[i]]
            candidates.append((-float(often[i]) * n, text[rows[first[i]]][place : place + n]))
    return [piece for _, piece in sorted(candidates)[:n_seeds]]


def _most_frequent(words: Mapping[bytes, int]) -> tuple[list[bytes], Floats]:
    """Return the most frequent words, cut to `LONGEST_WORD`, as far as memory allows."""
    joined: dict[bytes, int] = {}
    for word, count in words.items():
        joined[word[:LONGEST_WORD]] = joined.get(word[:LONGEST_WORD], 0) + count
    ranked = sorted(joined.items(), key=lambda item: (-item[1], item[0]))
    within = int(np.searchsorted(np.cumsum([len(word) for word, _ in ranked]), _MOST_BYTES)) + 1
    return [word for word, _ in ranked[:within]], np.array([float(count) for _, count in ranked[:within]])
