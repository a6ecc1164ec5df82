"""Batches: number `step` is a pure function of (seed, step), so resuming and the number of processes change nothing."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError, suggest
from kinfolk.core.rng import derive
from kinfolk.data.order import Budgeted, Contiguous, Grouped, InOrder, Order, Rows, Shuffled
from kinfolk.data.split import Indices, Pairs, Parsed, Split, TextSplit

ORDERS = ("shuffled", "contiguous")
_NO_LIMIT = 1 << 60
_COUNTED = 1 << 22
_CHUNK = 1 << 16
_MOST_BUDGETED = 1 << 27


@dataclasses.dataclass
class Batches:
    """The batches of a split.

    split: what `Data.split` gives. For text a batch is `tokens` [B, length + 1]: windows of the stream, so that
        inputs and next-token targets both have `length`. For pairs it is `source` = source + eos and
        `tokens` = bos + target + eos, padded on the right to the longest of the batch.
    batch_size: rows of a batch over all processes.
    length: window of text; for pairs the longest side kept (`n_cut` tells how many pairs lose their end), or None.
    seed: of the order; another seed, another order.
    shuffle: False gives every example once, in order, the last batch short: for validation.
    grouped: put pairs of similar length together, which saves most of the padding. Text has no padding to save.
    packed: for text, number positions and documents anew where a document begins, for masks that keep packed
        documents apart.
    order: "shuffled", or "contiguous" for text: row b of a batch goes on where row b of the batch before ended, and
        `continues` says so. Rows of pairs go on with nothing, so pairs are as ever.
    budget: for pairs, instead of `batch_size`, as many rows as fit in so many tokens, padding included.
    """

    split: Split
    _: dataclasses.KW_ONLY
    batch_size: int = 0
    length: int | None = None
    seed: int = 0
    shuffle: bool = True
    grouped: bool = True
    packed: bool = False
    order: str = "shuffled"
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1 and self.budget is None:
            raise DataError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.length is not None and self.length < 1:
            raise DataError(f"length must be at least 1, not {self.length}")
        if self.order not in ORDERS:
            raise DataError(f"order: unknown {self.order!r}{suggest(self.order, ORDERS)}")
        self._source = _Windows(self) if self.split.kind == "text" else _PaddedPairs(self)
        self._order = self._source.order()

    @property
    def steps_per_epoch(self) -> int:
        """Batches it takes to see everything once."""
        return self._order.steps_per_epoch

    @property
    def n_cut(self) -> int:
        """How many of the first four million pairs are longer than `length` and lose their end; text loses nothing."""
        return self._source.n_cut

    def at(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """Return this process's rows of batch number `step`; those of all processes together are the whole batch."""
        if not 0 <= rank < world:
            raise DataError(f"rank {rank} is not in a world of {world}")
        rows = self._order.at(step)
        n = len(rows.number)
        mine = slice(n * rank // world, n * (rank + 1) // world)
        return self._source.batch(rows, mine)

    def padding(self, steps: int) -> float:
        """Return the share of padding in the first `steps` batches, both sides of a pair together."""
        real = cells = 0
        for step in range(steps):
            batch = self.at(step)
            for keep in (batch.keep, batch.source_keep):
                real += int(keep.sum()) if keep is not None else 0
                cells += keep.numel() if keep is not None else 0
        return 1 - real / cells if cells else 0.0


class _Windows:
    """Windows of a stream of tokens."""

    n_cut = 0

    def __init__(self, batches: Batches) -> None:
        if batches.length is None or batches.budget is not None:
            raise DataError("text is cut into windows: give batch_size and length, and no budget")
        self.batches, self.length = batches, batches.length
        self.text = cast(TextSplit, batches.split)

    def order(self) -> Order:
        n, length = self.text.n_tokens, self.length
        if not self.batches.shuffle:
            # the last window is short: every token but the first is predicted exactly once
            windows, contiguous = max(1, -(-(n - 1) // length)), self.batches.order == "contiguous"
            make = functools.partial(Contiguous, whole=True) if contiguous else InOrder
            return make(windows, self.batches.batch_size)
        if n <= length:
            raise DataError(
                f"the {self.text.name} part has {n} tokens, but a window of length {length} needs {length + 1}; "
                "choose a smaller length or more data"
            )
        if self.batches.order == "contiguous":
            if n // length < self.batches.batch_size:
                raise DataError(
                    f"the {self.text.name} part has {n} tokens, too few for {self.batches.batch_size} contiguous rows "
                    f"of length {length}; choose a smaller batch_size or length, or more data"
                )
            return Contiguous(n // length, self.batches.batch_size)
        return Shuffled(n // length, self.batches.batch_size, self.batches.seed)

    def batch(self, rows: Rows, mine: slice) -> Batch:
        starts = self._starts(rows)
        n, width = self.text.n_tokens, self.length + 1
        # a window of the ring never ends; without shuffling the last one does
        sizes = np.full(len(starts), width) if self.batches.shuffle else np.clip(n - starts, 0, width)
        widest = width if self.batches.shuffle else int(sizes.max())
        starts, short = starts[mine], bool((sizes < widest).any())
        tokens = _padded(
            [self.text.window(int(s) if w else 0, int(w)) for s, w in zip(starts, sizes[mine], strict=True)],
            widest,
            self.text.tokenizer.pad,
        )
        keep = torch.from_numpy(np.arange(widest) < sizes[mine, None]) if short else None
        positions, document = self._packing(starts, widest, rows.continues) if self.batches.packed else (None, None)
        contiguous = self.batches.order == "contiguous"
        return Batch(
            index=torch.from_numpy(rows.number[mine]),
            tokens=tokens,
            keep=keep,
            positions=positions,
            document=document,
            continues=torch.full((len(starts),), rows.continues) if contiguous else None,
        )

    def _starts(self, rows: Rows) -> Indices:
        if not self.batches.shuffle:
            return rows.example * self.length
        # every epoch cuts the ring at other places, so that no token is always the first of its window
        shift = [derive(self.batches.seed, "offset", int(epoch)) % self.text.n_tokens for epoch in rows.epoch]
        return (np.array(shift, dtype=np.int64) + rows.example * self.length) % self.text.n_tokens

    def _packing(self, starts: Indices, width: int, continues: bool) -> tuple[Tensor, Tensor]:
        """Number documents and positions; of rows that go on, 0 is the document that the last batch ended in."""
        document = np.zeros((len(starts), width), np.int64)
        origin = np.zeros((len(starts), width), np.int64)
        for row, start in enumerate(starts):
            begins = self.text.begins((int(start) - continues) % self.text.n_tokens, width + continues) - continues
            begins = begins[begins < width]
            document[row, begins] = 1
            origin[row, begins] = begins
        positions = np.arange(width) - np.maximum.accumulate(origin, axis=1)
        return torch.from_numpy(positions), torch.from_numpy(document.cumsum(axis=1))


class _PaddedPairs:
    """Pairs, padded to the longest of their batch."""

    def __init__(self, batches: Batches) -> None:
        if batches.packed:
            raise DataError("packing is for text; pairs are grouped by length instead")
        self.batches, self.data = batches, cast(Pairs, batches.split)
        # `length` counts what a side reads; the last token of a target is only ever predicted, so one more is kept
        self.limits = (batches.length or _NO_LIMIT, (batches.length or _NO_LIMIT) + 1)

    @property
    def n_cut(self) -> int:
        if self.batches.length is None:
            return 0
        count, n = 0, min(len(self.data), _COUNTED)
        for start in range(0, n, _CHUNK):
            source, target = self.data.lengths(np.arange(start, min(start + _CHUNK, n)))
            count += int(((source + 1 > self.limits[0]) | (target + 2 > self.limits[1])).sum())
        return count

    def order(self) -> Order:
        options, n = self.batches, len(self.data)
        if options.budget is not None:
            if n > _MOST_BUDGETED:
                raise DataError(
                    f"a budget needs the lengths of all pairs in memory, and {n:,} are too many; give batch_size"
                )
            return Budgeted(self._longer_side(np.arange(n)), options.budget, options.seed, shuffle=options.shuffle)
        if not options.shuffle:
            return InOrder(n, options.batch_size)
        if not options.grouped:
            return Shuffled(n, options.batch_size, options.seed)
        return Grouped(n, options.batch_size, options.seed, self._longer_side)

    def batch(self, rows: Rows, mine: slice) -> Batch:
        tokenizer = self.data.tokenizer
        sources, targets = [], []
        for source, target in self.data.pairs(rows.example[mine]):
            sources.append(np.append(source.astype(np.int64), tokenizer.eos)[: self.limits[0]])
            targets.append(np.concatenate([[tokenizer.bos], target, [tokenizer.eos]])[: self.limits[1]])
        # the width is that of the whole batch, the same in every process
        source_lengths, target_lengths = self._lengths(rows.example)
        heads, words = self._parses(rows.example[mine], int(source_lengths.max()))
        return Batch(
            index=torch.from_numpy(rows.number[mine]),
            tokens=_padded(targets, int(target_lengths.max()), tokenizer.pad),
            keep=_keep(target_lengths, mine),
            source=_padded(sources, int(source_lengths.max()), tokenizer.pad),
            source_keep=_keep(source_lengths, mine),
            heads=heads,
            words=words,
        )

    def _parses(self, examples: Indices, width: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the heads of words and the words of tokens, where sources are parsed; the end has no word."""
        if not isinstance(self.data, Parsed):
            return None, None
        heads, words = zip(*self.data.parses(examples), strict=True) if len(examples) else ((), ())
        # what a limit cuts off keeps its place in the tree
        widest = max(map(len, heads), default=1)
        return _padded(heads, widest, -1), _padded([np.append(w, -1)[: self.limits[0]] for w in words], width, -1)

    def _lengths(self, examples: Indices) -> tuple[Indices, Indices]:
        """Return how many positions each side takes: source + eos, bos + target + eos, as far as they are kept."""
        source, target = self.data.lengths(examples)
        return np.minimum(source + 1, self.limits[0]), np.minimum(target + 2, self.limits[1])

    def _longer_side(self, examples: Indices) -> Indices:
        return np.maximum(*self._lengths(examples))


def _padded(rows: Sequence[NDArray[Any]], width: int, pad: int) -> Tensor:
    out = np.full((len(rows), width), pad, np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out)


def _keep(lengths: Indices, mine: slice) -> Tensor:
    return torch.from_numpy(np.arange(int(lengths.max())) < lengths[mine, None])
