"""ListOps: nested lists of digits under MIN, MAX, MED and SM (sum modulo 10), and the digit they come to.

Nangia and Bowman 2018, with the grammar and the limits of the Long Range Arena (Tay et al. 2021): a node is an
operator with probability 1/4 while the tree is less than `depth` deep, else a digit; an operator is one of four and has
2 to `arguments` arguments, all uniform. Of the trees, those are kept that are longer than `shortest` and shorter than
`length` tokens, an operator with its bracket and the closing bracket being one token each. MED of an even number of
digits is the mean of the middle two, rounded down.

Whole generations of nodes are drawn at once: a node is a hash of its parent and its place, so a tree needs no memory of
how it was drawn. Its first two generations decide which split it belongs to, which is a function of the question
and known before the rest has to be drawn.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.batches.mixing import Words, mix
from kinfolk.data.generated.made import MadeTask
from kinfolk.data.generated.rows import Made, SequenceRows, held_out
from kinfolk.data.generated.task import task, within
from kinfolk.data.splits.split import Indices
from kinfolk.data.tokenizers.tokenizer import Tokenizer

SYMBOLS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
MIN, MAX, MED, SM, CLOSE = range(10, 15)

# most of the trees drawn are of one digit or too long, and all of one round are drawn together
_ROOTS_AT_ONCE = 1 << 15
_TRIES_AT_ONCE = 16
_MOST_TRIES = 1 << 14


@dataclasses.dataclass
class _Generation:
    """Nodes of one depth, those of one parent side by side: the tree of each, its symbol, its number of arguments."""

    tree: Indices
    symbol: NDArray[np.uint8]
    count: Indices

    def of(self, kept: NDArray[np.bool_], number: Indices) -> "_Generation":
        """Return the nodes of the trees that are kept, which get new numbers."""
        here = kept[self.tree]
        return _Generation(number[self.tree[here]], self.symbol[here], self.count[here])


@task("listops")
@dataclasses.dataclass(frozen=True)
class ListOps(MadeTask):
    """Nested operations on digits: longer than `shortest` tokens and shorter than `length`.

    Not told, `shortest` is a quarter of `length`: 500 of the published 2,000.
    """

    length: int = 2000
    shortest: int | None = None
    depth: int = 10
    arguments: int = 10

    classes = tuple("0123456789")

    @property
    def longest(self) -> int:
        """Tokens of the longest there may be."""
        return self.length - 1

    def tokenizer(self) -> Tokenizer:
        """Return what turns tokens into ids."""
        return Tokenizer.words(SYMBOLS)

    def check(self) -> None:
        within("depth", self.depth, 2, 32)
        within("arguments", self.arguments, 2, 256)
        within("length", self.length, 8, 1 << 20)
        within("shortest", self._shortest, 0, self.length - 5)

    def draw(self, seed: int, numbers: Indices, *, valid: bool) -> Made:
        """Return the questions of these numbers and their answers."""
        pieces: list[SequenceRows] = []
        answers: list[Indices] = []
        place = np.zeros(len(numbers), np.int64)
        left, done, tried = np.arange(len(numbers)), 0, 0
        step = _TRIES_AT_ONCE * (10 if valid else 1)
        while len(left):
            if tried >= _MOST_TRIES:
                raise DataError(f"{self}: hardly any tree has such a length; allow others, or another depth")
            size = max(1, _ROOTS_AT_ONCE // step)
            missing = []
            for start in range(0, len(left), size):
                some = left[start : start + size]
                who, rows, answer = self._round(seed, numbers[some], np.arange(tried, tried + step), valid)
                place[some[who]] = done + np.arange(len(who))
                done += len(who)
                pieces.append(rows)
                answers.append(answer)
                missing.append(np.delete(some, who))
            left, tried = np.concatenate(missing), tried + step
        return Made((SequenceRows.gather(pieces, place),), np.concatenate(answers)[place])

    @property
    def _shortest(self) -> int:
        return self.length // 4 if self.shortest is None else self.shortest

    def _round(self, seed: int, numbers: Indices, tries: Indices, valid: bool) -> tuple[Indices, SequenceRows, Indices]:
        """Try every number some times; return who found a tree, and the first tree of each with its answer."""
        roots = mix(seed, numbers[:, None], tries).reshape(-1)
        generations, size = self._grow(roots, valid)
        good = ((size > self._shortest) & (size < self.length)).reshape(len(numbers), len(tries))
        who = np.flatnonzero(good.any(axis=1))
        kept = np.zeros(len(roots), bool)
        kept[who * len(tries) + good[who].argmax(axis=1)] = True
        number = np.cumsum(kept) - 1
        generations = [generation.of(kept, number) for generation in generations]
        rows, answers = (
            _write(generations, size[kept]) if len(who) else (SequenceRows(np.zeros(0, np.uint8), who[:0]), who)
        )
        return who, rows, answers

    def _grow(self, roots: Words, valid: bool) -> tuple[list[_Generation], Indices]:
        """Draw trees from the roots down; a tree that is too long or of the other split stops, its size is 0."""
        generations: list[_Generation] = []
        size = np.zeros(len(roots), np.int64)
        alive = np.ones(len(roots), bool)
        identity = np.zeros(len(roots), np.uint64)
        word, tree, child = roots, np.arange(len(roots)), np.zeros(len(roots), np.int64)
        for depth in range(1, self.depth + 1):
            # independent parts of one hash: the two lowest bits, the next two, and what is above
            is_operator = (word & np.uint64(3)) == 0 if depth < self.depth else np.zeros(len(word), bool)
            high = word >> np.uint64(8)
            operator = np.uint64(MIN) + ((word >> np.uint64(2)) & np.uint64(3))
            symbol = np.where(is_operator, operator, high % np.uint64(10)).astype(np.uint8)
            count = np.where(is_operator, 2 + (high % np.uint64(self.arguments - 1)).astype(np.int64), 0)
            generations.append(_Generation(tree, symbol, count))
            size += np.bincount(tree, minlength=len(roots)) + np.bincount(tree[is_operator], minlength=len(roots))
            alive &= size < self.length
            if depth <= 2:
                np.bitwise_xor.at(identity, tree, mix(depth, child, symbol))
            if depth == 2:
                alive &= held_out(identity) == valid
            parents = np.flatnonzero(is_operator & alive[tree])
            child = _places(count[parents])
            parent = np.repeat(parents, count[parents])
            word, tree = mix(5, word[parent], child), tree[parent]
        return generations, np.where(alive, size, 0)


def _write(generations: list[_Generation], size: Indices) -> tuple[SequenceRows, Indices]:
    """Evaluate trees from the leaves up, then write them from the roots down."""
    value: Indices = np.zeros(0, np.int64)
    width: Indices = np.zeros(0, np.int64)
    widths: list[Indices] = []
    for generation in reversed(generations):
        below, inside = value, width
        value, width = generation.symbol.astype(np.int64), np.ones(len(generation.symbol), np.int64)
        nodes = np.flatnonzero(generation.count)
        if len(nodes):
            count = generation.count[nodes]
            first = np.cumsum(count) - count
            value[nodes] = _values(generation.symbol[nodes], count, first, below)
            width[nodes] = 2 + np.add.reduceat(inside, first)
        widths.append(width)
    starts = np.concatenate([[0], np.cumsum(size)])
    flat = np.zeros(starts[-1], np.uint8)
    place = starts[:-1]
    for generation, wide, below in zip(generations, widths[::-1], [*widths[-2::-1], width[:0]], strict=True):
        flat[place] = generation.symbol
        nodes = np.flatnonzero(generation.count)
        if not len(nodes):
            break
        count = generation.count[nodes]
        flat[place[nodes] + wide[nodes] - 1] = CLOSE
        # an argument begins where those before it end
        before = np.cumsum(below) - below
        first = np.cumsum(count) - count
        place = np.repeat(place[nodes] + 1 - before[first], count) + before
    return SequenceRows(flat, starts), value


def _values(operator: NDArray[np.uint8], count: Indices, first: Indices, below: Indices) -> Indices:
    """Return what operators make of their arguments, which are `count` of the values below from `first`."""
    owner = np.repeat(np.arange(len(count)), count)
    # sorted within each operator, because the operators' numbers already are
    ordered = np.sort(owner * 16 + below) & 15
    middle = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) // 2
    total = np.add.reduceat(below, first) % 10
    cases = [operator == MIN, operator == MAX, operator == MED]
    return np.select(cases, [ordered[first], ordered[first + count - 1], middle], total)


def _places(count: Indices) -> Indices:
    """Return 0, 1, … for each of these counts, one after another."""
    first = np.cumsum(count) - count
    return np.arange(int(count.sum())) - np.repeat(first, count)
