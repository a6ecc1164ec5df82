"""MAD, mechanistic architecture design: six synthetic tasks on tokens (Poli et al. 2024, arXiv:2403.17844).

In-context recall, noisy recall, fuzzy recall, selective copying, compression and memorisation, with the settings that
the authors' repository (mad-lab) calls the baseline. The recall tasks train on every next token and are scored where a
key has been seen before; the others train on what they are scored on.
"""

import dataclasses
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kinfolk.data.batches.mixing import Words, below, fraction, mix
from kinfolk.data.generated.drawn import Symbols, TokenTask, signs
from kinfolk.data.generated.recall import without_repetition
from kinfolk.data.generated.task import TASKS, task, within
from kinfolk.data.splits.split import Indices


@dataclasses.dataclass(frozen=True)
class _MadTask(TokenTask):
    """What the six share: `vocab` symbols, all of which may be the answer."""

    vocab: int = 16
    length: int = 128

    sizes = MappingProxyType({"examples": 12_800, "valid": 1_280})

    @property
    def alphabet(self) -> str:
        """A sign for each symbol."""
        return signs(self.vocab)

    @property
    def classes(self) -> tuple[str, ...]:
        """The symbols."""
        return tuple(map(str, range(self.vocab)))

    @property
    def n_symbols(self) -> int:
        """Symbols of a sequence."""
        return self.length

    def check(self) -> None:
        within("vocab", self.vocab, 6, 1 << 13)
        within("length", self.length, 4, 1 << 16)


@task("in-context-recall")
@dataclasses.dataclass(frozen=True)
class InContextRecall(_MadTask):
    """Keys, each with a value that is its own in this sequence, in any order, until `length` symbols are full.

    `noise_vocab` symbols mean nothing; pairs of them replace a share of `noise` / 100 of the pairs (noisy recall). The
    symbols before them are keys and values, half each. The value of every key that was there before is asked for.
    """

    noise_vocab: int = 0
    noise: int = 0

    @property
    def n_symbols(self) -> int:
        """Symbols of a sequence: the last value is only asked for."""
        return 2 * (self.length // 2) - 1

    def check(self) -> None:
        super().check()
        within("noise", self.noise, 0, 99)
        within("noise_vocab", self.noise_vocab, int(self.noise > 0), self.vocab - 4)

    def draw(self, seed: int, numbers: Indices, tries: Indices, *, train: bool) -> Symbols:
        """Draw the values of all keys, then pairs; the last repeats one of those before."""
        words, pairs, n = mix(seed, numbers, tries), self.length // 2, len(numbers)
        known = self.vocab - self.noise_vocab
        half = known // 2
        values = half + below(mix(0, words[:, None], np.arange(half)), known - half)
        places = np.arange(pairs)
        keys = below(mix(1, words[:, None], places), half)
        noisy = fraction(mix(2, words[:, None], places)) < self.noise / 100
        # one pair before the last is never noise
        np.put_along_axis(noisy, below(mix(3, words), pairs - 1)[:, None], False, axis=1)
        noisy[:, -1] = False
        keys[:, -1] = _one_of(keys[:, :-1], ~noisy[:, :-1], half, mix(4, words))
        seen = np.zeros((n, half), bool)
        repeated = np.zeros((n, pairs), bool)
        for i in range(pairs):
            here = np.arange(n), keys[:, i]
            repeated[:, i] = seen[here] & ~noisy[:, i]
            seen[here] |= ~noisy[:, i]
        row = np.stack([keys, np.take_along_axis(values, keys, axis=1)], axis=2)
        empty = known + below(mix(5, words[:, None, None], places[:, None], np.arange(2)), max(1, self.noise_vocab))
        row = np.where(noisy[..., None], empty, row).reshape(n, -1)
        asked = np.where(np.stack([np.zeros_like(repeated), repeated], axis=2).reshape(n, -1), row, -1)
        return Symbols(row[:, :-1].copy(), np.full(n, self.n_symbols), (row if train else asked)[:, 1:].copy())


TASKS["noisy-recall"] = InContextRecall(vocab=32, noise_vocab=16, noise=20)


@task("fuzzy-recall")
@dataclasses.dataclass(frozen=True)
class FuzzyRecall(_MadTask):
    """Recall with keys and values of 1 to `motif` symbols each; validation has keys of `motif` symbols only.

    A motif repeats no symbol. The last symbol of the vocabulary fills the sequence up from the left; those before it
    are of keys and of values, half each.
    """

    motif: int = 3

    def check(self) -> None:
        super().check()
        within("motif", self.motif, 1, min((self.vocab - 1) // 2, self.length // 6))

    def draw(self, seed: int, numbers: Indices, tries: Indices, *, train: bool) -> Symbols:
        """Draw each sequence with a generator of its own."""
        rows = [self._row(np.random.default_rng(int(word)), train) for word in mix(seed, numbers, tries)]
        symbols, asked = (np.array(side) for side in zip(*rows, strict=True))
        targets = symbols[:, 1:] if train else asked[:, 1:]
        return Symbols(symbols[:, :-1].copy(), np.full(len(numbers), self.length), targets.copy())

    def _row(self, rng: np.random.Generator, train: bool) -> tuple[list[int], list[int]]:
        """Return `length` + 1 symbols, and those of them that are asked for."""
        half = (self.vocab - 1) // 2

        def motif(first: int, n: int, least: int) -> tuple[int, ...]:
            return tuple((first + rng.permutation(n)[: rng.integers(least, self.motif + 1)]).tolist())

        def pair() -> tuple[tuple[int, ...], tuple[int, ...]]:
            return motif(0, half, 1 if train else self.motif), motif(half, self.vocab - 1 - half, 1)

        probe, answer = pair()
        size = len(probe) + len(answer)
        # early enough for the pair that is asked for at the end to be there, which mad-lab does not ensure
        due, found = int(rng.integers(self.length - size - 4 * self.motif + 1)), False
        values, row, asked = {probe: answer}, list[int](), list[int]()
        seen = set[tuple[int, ...]]()
        while len(row) < self.length - size - 2 * self.motif:
            key, value = (probe, answer) if len(row) >= due and not found else pair()
            value = values.setdefault(key, value)
            found = found or key == probe
            row += key + value
            asked += [-1] * len(key) + (list(value) if key in seen else [-1] * len(value))
            seen.add(key)
        row += probe + answer
        asked += [-1] * len(probe) + list(answer)
        fill = self.length + 1 - len(row)
        return [self.vocab - 1] * fill + row, [-1] * fill + asked


@task("selective-copying")
@dataclasses.dataclass(frozen=True)
class SelectiveCopying(_MadTask):
    """`copied` symbols with blanks between them, a mark, and as many blanks, at which they are asked for in order."""

    length: int = 256
    copied: int = 16

    def check(self) -> None:
        super().check()
        within("copied", self.copied, 1, (self.length - 2) // 2)

    def draw(self, seed: int, numbers: Indices, tries: Indices, *, train: bool) -> Symbols:
        """Draw the symbols, and before which of them each blank is."""
        words, n, k = mix(seed, numbers, tries), len(numbers), self.copied
        blanks = self.length - 2 * k - 1
        given = below(mix(0, words[:, None], np.arange(k)), self.vocab - 2)
        before = below(mix(1, words[:, None], np.arange(blanks)), k)
        symbols = np.full((n, self.length), self.vocab - 2)
        places = np.arange(k) + (before[:, None, :] <= np.arange(k)[None, :, None]).sum(axis=2)
        np.put_along_axis(symbols, places, given, axis=1)
        symbols[:, k + blanks] = self.vocab - 1
        targets = np.full((n, self.length), -1)
        targets[:, -k:] = given
        return Symbols(symbols, np.full(n, self.length), targets)


@task("compression")
@dataclasses.dataclass(frozen=True)
class Compression(_MadTask):
    """Random symbols and a mark, all of which are to be told from the state at the end alone (task `reconstruct`)."""

    length: int = 32

    objective = "reconstruct"

    def draw(self, seed: int, numbers: Indices, tries: Indices, *, train: bool) -> Symbols:
        """Draw the symbols."""
        places = np.arange(self.length)
        symbols = below(mix(seed, numbers[:, None], tries[:, None], places), self.vocab - 1)
        symbols[:, -1] = self.vocab - 1
        return Symbols(symbols, np.full(len(numbers), self.length), symbols.copy())


@task("memorisation")
@dataclasses.dataclass(frozen=True)
class Memorisation(_MadTask):
    """Keys, each followed by a blank at which its value is asked for; the values are the same in all sequences.

    They are never shown, so they can only be learnt, and validation asks for the same ones.
    """

    vocab: int = 256
    length: int = 32
    _MAP: ClassVar[int] = 12345

    sizes = MappingProxyType({"examples": 256, "valid": 1_280})

    def draw(self, seed: int, numbers: Indices, tries: Indices, *, train: bool) -> Symbols:
        """Draw the keys."""
        half, pairs, n = (self.vocab - 1) // 2, self.length // 2, len(numbers)
        values = half + without_repetition(mix(self._MAP, np.arange(1)), self.vocab - 1 - half, half)[0]
        keys = below(mix(seed, numbers[:, None], tries[:, None], np.arange(pairs)), half)
        symbols = np.stack([keys, np.full_like(keys, self.vocab - 1)], axis=2).reshape(n, -1)
        targets = np.stack([np.full_like(keys, -1), values[keys]], axis=2).reshape(n, -1)
        return Symbols(symbols, np.full(n, 2 * pairs), targets)

    @property
    def n_symbols(self) -> int:
        """Symbols of a sequence."""
        return 2 * (self.length // 2)


def _one_of(keys: Indices, eligible: NDArray[np.bool_], n: int, words: Words) -> Indices:
    """Sample one of the different eligible keys of each row, all equally likely."""
    there = np.zeros((len(keys), n), bool)
    rows = np.broadcast_to(np.arange(len(keys))[:, None], keys.shape)
    there[rows[eligible], keys[eligible]] = True
    lots = np.where(there, mix(0, words[:, None], np.arange(n)) >> np.uint64(1), np.uint64(2**64 - 1))
    drawn: Indices = lots.argmin(axis=1)
    return drawn
