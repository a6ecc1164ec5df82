"""Logical inference: which of seven relations holds between two formulas of propositional logic.

Bowman et al. 2015, with the sampler of Tran et al. 2018: a pair of formulas has four of six variables. A formula
with a budget of m is a variable with probability 5/9, or when m < 2, and else two formulas of budget m/2 under
`and` or `or`; every one of these, at each level, is then negated with probability 1/3. A pair is thrown away when
one side is always true or always false.

A formula is a row of slots of a complete binary tree, and its meaning the set of the 64 worlds in which it holds, one
bit of a word each; so formulas by the thousand are drawn and evaluated at once.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.batches.mixing import Words, mix
from kinfolk.data.generated.made import MadeTask
from kinfolk.data.generated.rows import Made, SequenceRows, held_out
from kinfolk.data.generated.task import GeneratedTask, task, within
from kinfolk.data.splits.split import Indices
from kinfolk.data.tokenizers.tokenizer import Tokenizer

SYMBOLS = ("(", ")", "and", "or", "not", *"abcdef")
OPEN, CLOSE, AND, OR, NOT, FIRST = range(6)
RELATIONS = ("=", "<", ">", "^", "|", "v", "#")
"""Equivalence, entailment, reverse entailment, negation, alternation, cover, independence."""

N_VARIABLES, N_USED = 6, 4
MOST = 12
"""Pairs with more operators than this are counted among those with this number."""

# the worlds in which each variable is true: world w makes variable v true where bit v of w is set
_WORLDS = np.array([sum(1 << w for w in range(64) if w >> v & 1) for v in range(N_VARIABLES)], dtype=np.uint64)
_ALWAYS, _NEVER = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0)
# tries of a round, which is twice the one before
_FEWEST_TRIES, _MOST_TRIES = 2, 1 << 16
_PAIRS_AT_ONCE = 1 << 16


@dataclasses.dataclass(frozen=True)
class Formulas:
    """Formulas as slots of a binary tree, the children of slot i in 2i + 1 and 2i + 2.

    symbol: AND, OR, a variable, or 0 in a slot that is not used; negated: whether `not` precedes it.
    """

    symbol: NDArray[np.uint8]
    negated: NDArray[np.bool_]

    def __getitem__(self, rows: Indices | NDArray[np.bool_] | slice) -> "Formulas":
        return Formulas(self.symbol[rows], self.negated[rows])

    @property
    def operators(self) -> Indices:
        """How many `and`, `or` and `not` each has."""
        binary = (self.symbol == AND) | (self.symbol == OR)
        return (binary.sum(axis=1) + self.negated.sum(axis=1)).astype(np.int64)

    @property
    def worlds(self) -> Words:
        """The worlds in which each holds."""
        slots = self.symbol.shape[1]
        holds = np.zeros(self.symbol.shape, np.uint64)
        for slot in reversed(range(slots)):
            symbol = self.symbol[:, slot]
            holding = _WORLDS[np.clip(symbol.astype(np.int64) - FIRST, 0, None)]
            if 2 * slot + 2 < slots:
                left, right = holds[:, 2 * slot + 1], holds[:, 2 * slot + 2]
                holding = np.where(symbol == AND, left & right, np.where(symbol == OR, left | right, holding))
            holds[:, slot] = np.where(self.negated[:, slot], ~holding, holding)
        worlds: Words = holds[:, 0]
        return worlds

    @property
    def identity(self) -> Words:
        """A hash of each formula."""
        slots = np.arange(self.symbol.shape[1])
        identity: Words = np.bitwise_xor.reduce(mix(1, slots, 2 * self.symbol + self.negated), axis=1)
        return identity

    @property
    def rows(self) -> SequenceRows:
        """Each formula, written."""
        return SequenceRows.of([bytes(self.write(row)) for row in range(len(self.symbol))])

    def write(self, row: int, slot: int = 0) -> list[int]:
        """Return the symbols of one formula: `( left ( and right ) )`, `( not x )`."""
        symbol = int(self.symbol[row, slot])
        if symbol in (AND, OR):
            left, right = self.write(row, 2 * slot + 1), self.write(row, 2 * slot + 2)
            written = [OPEN, *left, OPEN, symbol, *right, CLOSE, CLOSE]
        else:
            written = [symbol]
        return [OPEN, NOT, *written, CLOSE] if self.negated[row, slot] else written


@task("logic")
@dataclasses.dataclass(frozen=True)
class Logic(MadeTask):
    """Pairs of formulas with `fewest` to `operators` operators in the longer one; 12 means 12 and more.

    `logic:operators=6` has a further split, `longer`, of those with 7 and more.

    budget: what a formula may use: halved at each level, and a variable when less than 2 is left.
    """

    operators: int = MOST
    fewest: int = 0
    budget: int = 12

    classes = RELATIONS
    apart = True

    @property
    def longest(self) -> int:
        """Tokens of the longest there may be: everything is negated, which takes three, and connectives take five."""
        return 3 * self._slots + 5 * (self._slots // 2) + (self._slots + 1) // 2

    def tokenizer(self) -> Tokenizer:
        """Return what turns tokens into ids."""
        return Tokenizer.words(SYMBOLS)

    def more(self) -> dict[str, GeneratedTask]:
        """Return a further split, of the pairs with more operators than those that are trained on."""
        if self.operators == MOST:
            return {}
        return {"longer": dataclasses.replace(self, fewest=self.operators + 1, operators=MOST)}

    def check(self) -> None:
        within("operators", self.operators, 0, MOST)
        within("fewest", self.fewest, 0, self.operators)
        within("budget", self.budget, 1, 64)

    def draw(self, seed: int, numbers: Indices, *, valid: bool) -> Made:
        """Return both sides of the pairs of these numbers, written, and their relations."""
        a, b = self.formulas(seed, numbers, valid=valid)
        return Made((a.rows, b.rows), relation(a.worlds, b.worlds))

    def formulas(self, seed: int, numbers: Indices, *, valid: bool) -> tuple[Formulas, Formulas]:
        """Return both sides of the pairs of these numbers."""
        words = np.zeros(len(numbers), np.uint64)
        left, tried, step = np.arange(len(numbers)), 0, _FEWEST_TRIES
        while len(left):
            if tried >= _MOST_TRIES:
                raise DataError(f"{self}: hardly any pair is like that; allow more operators, or another budget")
            step = min(2 * step, max(_FEWEST_TRIES, _PAIRS_AT_ONCE // len(left)))
            tries = mix(seed, numbers[left][:, None], np.arange(tried, tried + step))
            good = self._kept(tries.reshape(-1), valid).reshape(tries.shape)
            who = np.flatnonzero(good.any(axis=1))
            words[left[who]] = tries[who, good[who].argmax(axis=1)]
            left, tried = np.delete(left, who), tried + step
        return self._pairs(words)

    @property
    def _levels(self) -> int:
        """Levels of operators: 12, 6 and 3 are at least 2, and 1.5 is not."""
        return self.budget.bit_length() - 1

    @property
    def _slots(self) -> int:
        return 2 ** (self._levels + 1) - 1

    def _pairs(self, words: Words) -> tuple[Formulas, Formulas]:
        order = np.argsort(mix(1, words[:, None], np.arange(N_VARIABLES)), axis=1)
        used = order[:, :N_USED].astype(np.uint8)
        return self._formulas(mix(2, words), used), self._formulas(mix(3, words), used)

    def _formulas(self, words: Words, used: NDArray[np.uint8]) -> Formulas:
        slots = np.arange(self._slots)
        drawn = mix(4, words[:, None], slots)
        binary = (drawn % np.uint64(9) < 4) & (slots < self._slots // 2)
        there = np.zeros_like(binary)
        there[:, 0] = True
        for slot in range(self._slots // 2):
            there[:, 2 * slot + 1] = there[:, 2 * slot + 2] = there[:, slot] & binary[:, slot]
        # further parts of the same hash
        bits = (drawn // np.uint64(9)) >> np.uint64(8)
        connective = np.where(bits & np.uint64(1), AND, OR)
        variable = FIRST + np.take_along_axis(used, ((bits >> np.uint64(1)) & np.uint64(3)).astype(np.int64), axis=1)
        symbol = np.where(there, np.where(binary, connective, variable), 0).astype(np.uint8)
        return Formulas(symbol, there & ((bits >> np.uint64(3)) % np.uint64(3) == 0))

    def _kept(self, words: Words, valid: bool) -> NDArray[np.bool_]:
        """Tell which draws are pairs of this split and size whose sides both say something."""
        a, b = self._pairs(words)
        size = np.minimum(MOST, np.maximum(a.operators, b.operators))
        kept = np.flatnonzero((size >= self.fewest) & (size <= self.operators))
        # a pair and the same pair the other way round are one question
        kept = kept[held_out(a[kept].identity + b[kept].identity) == valid]
        for side in (a, b):
            worlds = side[kept].worlds
            kept = kept[(worlds != _ALWAYS) & (worlds != _NEVER)]
        good = np.zeros(len(words), bool)
        good[kept] = True
        return good


def relation(a: Words, b: Words) -> Indices:
    """Return the relation of two sets of worlds, by which of the four regions of their diagram are inhabited."""
    both, only_a, only_b, neither = ((region != 0) for region in (a & b, a & ~b, b & ~a, ~(a | b)))
    return np.select(
        [
            ~only_a & ~only_b,
            ~only_a & both & neither,
            ~only_b & both & neither,
            ~both & ~neither,
            ~both,
            ~neither & only_a & only_b,
        ],
        list(range(6)),
        6,
    )
