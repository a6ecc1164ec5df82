"""Entity mentions and knowledge graphs as token ids: where a row names something, and the tree that its facts make."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Ids = NDArray[np.int64]
Name = tuple[int, ...]


class Mention(NamedTuple, Generic[T]):
    """Tokens `first` to `last` of a row, both included, name something of which `what` is known."""

    first: int
    last: int
    what: T


@dataclasses.dataclass(frozen=True, eq=False)
class Names(Generic[T]):
    """A dictionary whose words are rows of token ids."""

    known: Mapping[Name, T]

    @functools.cached_property
    def lengths(self) -> dict[int, list[int]]:
        """How many tokens the names have that begin with each token, the most first."""
        lengths_of: dict[int, set[int]] = {}
        for name in self.known:
            lengths_of.setdefault(name[0], set()).add(len(name))
        return {first: sorted(lengths, reverse=True) for first, lengths in lengths_of.items()}

    def mentions(self, row: NDArray[Any], starts: NDArray[np.bool_] | None = None) -> Iterator[Mention[T]]:
        """Yield what a row names, from the left, the longest name first; no two of them share a token.

        starts: of each token whether a word begins with it; a name is whole words. None: every token is a word.
        """
        ids, at = row.tolist(), 0
        while at < len(ids):
            taken = 1
            for length in self.lengths.get(ids[at], ()) if starts is None or starts[at] else ():
                name, stop = tuple(ids[at : at + length]), at + length
                if name in self.known and (starts is None or stop == len(ids) or starts[stop]):
                    yield Mention(at, stop - 1, self.known[name])
                    taken = length
                    break
            at += taken


Branches = tuple[Name, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceTree:
    """A sentence with branches, flattened: each branch follows the name it belongs to (Liu et al. 2020, figure 3).

    tokens, positions: of each token its id, and its place on the way from the root: a branch and what follows the name
        in the sentence count on from the same place.
    visible: [n, n], true where one token may see another. The sentence sees itself; a branch sees itself and the
        tokens of its name, and these see it. So two branches never see each other, and what is not named sees none.
    trunk: true of the tokens of the sentence.
    """

    tokens: Ids
    positions: Ids
    visible: NDArray[np.bool_]
    trunk: NDArray[np.bool_]
    parent: Ids  # of each token the token of the sentence that it is, or hangs on

    @classmethod
    def grow(cls, row: NDArray[Any], mentions: Sequence[Mention[Branches]]) -> "SentenceTree":
        """Hang the branches of all mentions on a sentence."""
        hangs = {mention.last: mention for mention in mentions}
        tokens: list[int] = []
        positions: list[int] = []
        # of each token, the branch it is part of; the sentence is number 0
        branch: list[int] = []
        parent: list[int] = []
        names: list[tuple[int, int]] = [(0, -1)]
        for at, token in enumerate(row.tolist()):
            tokens.append(token)
            positions.append(at)
            branch.append(0)
            parent.append(at)
            if at not in hangs:
                continue
            for ids in hangs[at].what:
                tokens += ids
                positions += range(at + 1, at + 1 + len(ids))
                branch += [len(names)] * len(ids)
                parent += [at] * len(ids)
                names.append((hangs[at].first, hangs[at].last))
        number, trunk = np.array(branch, np.int64), np.array(branch, np.int64) == 0
        visible = number[:, None] == number[None]
        place, (first, last) = np.array(positions, np.int64), np.array(names, np.int64).T
        # tokens of the sentence within the name that each token's branch hangs on
        named = trunk[:, None] & (place[:, None] >= first[number]) & (place[:, None] <= last[number])
        return cls(np.array(tokens, np.int64), place, visible | named | named.T, trunk, np.array(parent, np.int64))

    def sentence_first(self) -> "SentenceTree":
        """Return the same tree with all branches behind the sentence, whose tokens so keep their places in the row.

        Attention knows the places of tokens by `positions` alone, so the order of a row means nothing to it.
        """
        order = np.argsort(~self.trunk, kind="stable")
        return SentenceTree(
            self.tokens[order],
            self.positions[order],
            self.visible[order][:, order],
            self.trunk[order],
            self.parent[order],
        )
