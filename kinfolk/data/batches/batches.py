"""Batches: number `step` is a pure function of (seed, step), so resuming and the number of processes change nothing."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.core.annotations import Continuation, OtherDocument, Parse, TaskNumber
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import DataError, suggest
from kinfolk.core.rng import Rng, derive
from kinfolk.data.batches.order import (
    MEGA,
    BatchOrder,
    BatchRows,
    Budgeted,
    ByLength,
    Contiguous,
    Grouped,
    InOrder,
    Shuffled,
)
from kinfolk.data.splits.passages import elsewhere, passage
from kinfolk.data.splits.several import Turn, Turns
from kinfolk.data.splits.split import Indices, Split, TextSplit
from kinfolk.data.splits.text_labels import text_labels

ORDERS = ("shuffled", "contiguous", "documents")
GROUPINGS = ("auto", "length", "none", "sorted")
CUTS = ("head", "tail", "both")
_NO_LIMIT = 1 << 60
_COUNTED = 1 << 22
_CHUNK = 1 << 16
_MOST_BUDGETED = 1 << 27


@dataclasses.dataclass
class Batches:
    """The batches of a split.

    split: what `Data.split` gives. For text a batch is `tokens` [B, length + 1]: windows of the stream, so that
        inputs and next-token targets both have `length`. For pairs it is `source` = source + eos and
        `tokens` = start + target + eos, padded on the right to the longest of the batch. For labelled examples it is
        `labels` and `tokens` = sequence + eos; the second sequence, where an example has two, is `source`. For
        images without labels it is `tokens` = bos + values.
    batch_size: rows of a batch over all processes.
    length: window of text; for pairs the longest side kept (`n_cut` tells how many pairs lose their end), or None.
    seed: of the order; another seed, another order.
    shuffle: False gives every example once, in order, the last batch short: for validation.
    grouping: "length" puts examples of similar length into one batch, which saves most of the padding, and shuffles the
        batches; "none" shuffles examples only; "auto" is "length" for pairs and "none" for labelled examples, whose
        batches would be alike in more than their length. "sorted" is "length" with batches in waves from long to short,
        for runs of earlier versions. Text has no padding to save.
    by_length: without shuffling, sort the examples of this many of the first batches by length (0: all); None keeps
        their order. Text has no padding to save.
    packed: for text, number positions and documents anew where a document begins, for masks that keep packed
        documents apart.
    order: "shuffled", or "contiguous" for text: row b of a batch goes on where row b of the batch before ended, and
        `Continuation` says so. Rows of pairs go on with nothing, so pairs are as ever. "documents": shuffled, each row
        a passage of one document without specials, and `OtherDocument` one of another document.
    cut: what is left of a labelled sequence longer than `length`: its "head", its "tail", or of "both" a quarter of
        the head and the rest of the tail (Sun et al. 2019, section 5.3.1).
    budget: for pairs, instead of `batch_size`, as many rows as fit in this number of tokens, padding included.
    """

    split: Split
    _: dataclasses.KW_ONLY
    batch_size: int = 0
    length: int | None = None
    seed: int = 0
    shuffle: bool = True
    grouping: str = "auto"
    by_length: int | None = None
    packed: bool = False
    order: str = "shuffled"
    cut: str = "head"
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1 and self.budget is None:
            raise DataError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.length is not None and self.length < 1:
            raise DataError(f"length must be at least 1, not {self.length}")
        for name, value, allowed in (
            ("order", self.order, ORDERS),
            ("cut", self.cut, CUTS),
            ("grouping", self.grouping, GROUPINGS),
            ("split.kind", self.split.kind, _SOURCES),
        ):
            if value not in allowed:
                raise DataError(f"{name}: unknown {value!r}{suggest(value, allowed)}")
        self._source = _SOURCES[self.split.kind](self)
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

    def widest(self) -> int:
        """Return which of the first batches (one group of them, or an epoch) has the longest rows."""
        widths = [self._source.width(self._order.at(step)) for step in range(min(MEGA, self.steps_per_epoch))]
        return int(np.argmax(widths))

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

    def order(self) -> BatchOrder:
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

    def width(self, rows: BatchRows) -> int:
        return self.length

    def batch(self, rows: BatchRows, mine: slice) -> Batch:
        starts = self._starts(rows)
        if self.batches.order == "documents":
            return self._passages(rows.number[mine], starts[mine])
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
            annotations=(Continuation(torch.full((len(starts),), rows.continues)),) if contiguous else (),
        )

    def _passages(self, numbers: Indices, starts: Indices) -> Batch:
        n, width, pad = self.text.n_tokens, self.length + 1, self.text.tokenizer.pad
        rng = Rng(self.batches.seed)
        own, others = [], []
        for number, start in zip(numbers.tolist(), starts.tolist(), strict=True):
            # after the last token comes the first, but for validation the text ends
            ids, place = passage(self.text, start, width if self.batches.shuffle else min(width, n - start))
            own.append(ids)
            others.append(elsewhere(self.text, place, width, rng.example(number, "other")))
        sizes, other_sizes = (np.array([len(ids) for ids in rows], np.int64) for rows in (own, others))
        other_keep = torch.from_numpy(np.arange(width) < other_sizes[:, None])
        return Batch(
            index=torch.from_numpy(numbers),
            tokens=_padded(own, width, pad),
            keep=torch.from_numpy(np.arange(width) < sizes[:, None]),
            annotations=(OtherDocument(_padded(others, width, pad), other_keep),),
        )

    def _starts(self, rows: BatchRows) -> Indices:
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


class _Padded:
    """Examples of one or two sequences, padded to the longest of their batch.

    grouped: whether batches are grouped by length where nothing else is asked for.
    """

    grouped = False

    def __init__(self, batches: Batches, *more: int) -> None:
        if batches.packed:
            raise DataError("packing is for text; examples are grouped by length instead")
        self.batches, self.data = batches, batches.split
        # how many positions each sequence keeps; without a `length`, all
        self.limits = tuple((batches.length or _NO_LIMIT) + n for n in more)

    def sides(self, examples: Indices) -> tuple[Indices, ...]:
        """Return how many positions each sequence takes, specials included."""
        raise NotImplementedError

    @property
    def n_cut(self) -> int:
        if self.batches.length is None:
            return 0
        count, n = 0, min(len(self.data), _COUNTED)
        for start in range(0, n, _CHUNK):
            sides = self.sides(np.arange(start, min(start + _CHUNK, n)))
            longer = [side > limit for side, limit in zip(sides, self.limits, strict=True)]
            count += int(np.logical_or.reduce(longer).sum())
        return count

    def order(self) -> BatchOrder:
        options, n = self.batches, len(self.data)
        if options.budget is not None:
            if n > _MOST_BUDGETED:
                raise DataError(
                    f"a budget needs the lengths of all examples in memory, and {n:,} are too many; give batch_size"
                )
            return Budgeted(self._longer_side(np.arange(n)), options.budget, options.seed, shuffle=options.shuffle)
        if not options.shuffle and options.by_length is not None:
            return ByLength(n, options.batch_size, self._longer_side, options.by_length)
        if not options.shuffle:
            return InOrder(n, options.batch_size)
        mixed = {"auto": not self.grouped, "none": True}.get(options.grouping, False)
        if mixed:
            return Shuffled(n, options.batch_size, options.seed)
        permuted = options.grouping != "sorted"
        return Grouped(n, options.batch_size, options.seed, self._longer_side, permuted=permuted)

    def width(self, rows: BatchRows) -> int:
        return int(self._longer_side(rows.example).max())

    def _lengths(self, examples: Indices) -> tuple[Indices, ...]:
        """Return how many positions of each sequence are kept."""
        return tuple(np.minimum(side, limit) for side, limit in zip(self.sides(examples), self.limits, strict=True))

    def _longer_side(self, examples: Indices) -> Indices:
        longest: Indices = np.maximum.reduce(self._lengths(examples))
        return longest


class _PaddedPairs(_Padded):
    """Pairs: source + eos, start + target + eos; an imported tokenizer says itself what is around a source."""

    grouped = True

    def __init__(self, batches: Batches) -> None:
        # `length` counts what a side reads; the last token of a target is only ever predicted, so one more is kept
        super().__init__(batches, 0, 1)
        frame: tuple[list[int], list[int]] | None = self.data.tokenizer.source_frame
        self.before, self.behind = frame or ([], [self.data.tokenizer.eos])

    def sides(self, examples: Indices) -> tuple[Indices, ...]:
        source, target = self.data.lengths(examples)
        return source + len(self.before) + len(self.behind), target + 2

    def batch(self, rows: BatchRows, mine: slice) -> Batch:
        tokenizer = self.data.tokenizer
        sources, targets = [], []
        for source, target in self.data.pairs(rows.example[mine]):
            whole = [np.array(ids, np.int64) for ids in (self.before, source, self.behind)]
            sources.append(np.concatenate(whole)[: self.limits[0]])
            targets.append(np.concatenate([[tokenizer.start], target, [tokenizer.eos]])[: self.limits[1]])
        # the width is that of the whole batch, the same in every process
        source_lengths, target_lengths = self._lengths(rows.example)
        parse = self._parse(rows.example[mine], int(source_lengths.max()))
        return Batch(
            index=torch.from_numpy(rows.number[mine]),
            tokens=_padded(targets, int(target_lengths.max()), tokenizer.pad),
            keep=_keep(target_lengths, mine),
            source=_padded(sources, int(source_lengths.max()), tokenizer.pad),
            source_keep=_keep(source_lengths, mine),
            annotations=() if parse is None else (parse,),
        )

    def _parse(self, examples: Indices, width: int) -> Parse | None:
        """Return the dependency parse of sources, if they have one; special tokens are outside it."""
        parses = self.data.parses(examples)
        if parses is None:
            return None
        heads, words = zip(*parses, strict=True) if len(examples) else ((), ())
        # what a limit cuts off keeps its place in the tree
        widest = max(map(len, heads), default=1)
        return Parse(_padded(heads, widest, -1), _padded([self._worded(w) for w in words], width, -1))

    def _worded(self, words: Indices) -> Indices:
        """Add the special tokens around a source, which belong to no word."""
        whole = np.concatenate([[-1] * len(self.before), words, [-1] * len(self.behind)])
        return whole[: self.limits[0]].astype(np.int64)


class _Labelled(_Padded):
    """Sequences with a label, or pairs of them with one: each sequence + eos, the first as tokens."""

    def __init__(self, batches: Batches) -> None:
        self.n_ends = int(batches.split.ends)
        if batches.cut != "head" and text_labels(batches.split.asks) is not None:
            raise DataError(f"cut: {batches.cut!r} would move tokens away from their labels; use 'head'")
        super().__init__(batches, *(0 for _ in batches.split.sides(np.zeros(1, np.int64))))

    def sides(self, examples: Indices) -> tuple[Indices, ...]:
        return tuple(side + self.n_ends for side in self.data.sides(examples))

    def batch(self, rows: BatchRows, mine: slice) -> Batch:
        examples = self.data.examples(rows.example[mine])
        sequences = [self._sequences(examples, at) for at in range(len(self.limits))]
        # the width is that of the whole batch, the same in every process
        lengths, pad = self._lengths(rows.example), self.data.tokenizer.pad
        padded = [_padded(ids, int(n.max()), pad) for ids, n in zip(sequences, lengths, strict=True)]
        keeps = [_keep(n, mine) for n in lengths]
        return Batch(
            index=torch.from_numpy(rows.number[mine]),
            tokens=padded[0],
            keep=keeps[0],
            source=padded[1] if len(padded) > 1 else None,
            source_keep=keeps[1] if len(padded) > 1 else None,
        ).replace(**self._labels(examples, int(lengths[0].max())))

    def _labels(self, examples: Sequence[Sequence[Any]], width: int) -> dict[str, Tensor]:
        """Return labels of examples, or tags of tokens as targets."""
        inside = text_labels(self.data.asks)
        if inside is not None and inside.per_token:
            return {"targets": _padded([tags[: self.limits[0]] for _, tags in examples], width, IGNORE)}
        labels = torch.from_numpy(np.array([label for *_, label in examples]))
        return {"labels": labels.float() if labels.is_floating_point() else labels.long()}

    def _sequences(self, examples: Sequence[Sequence[Any]], at: int) -> list[NDArray[Any]]:
        end = [self.data.tokenizer.eos] * self.n_ends
        whole = (np.append(example[at].astype(np.int64), end) for example in examples)
        return [shortened(ids, self.limits[at], self.batches.cut) for ids in whole]


class _Images(_Padded):
    """Images without labels: bos + values, all of one length."""

    def __init__(self, batches: Batches) -> None:
        # as of a text, the last value is only ever predicted
        super().__init__(batches, 1)

    def sides(self, examples: Indices) -> tuple[Indices, ...]:
        return (self.data.lengths(examples) + 1,)

    def batch(self, rows: BatchRows, mine: slice) -> Batch:
        opening, limit = self.data.tokenizer.bos, self.limits[0]
        images = [np.append(opening, values)[:limit] for values in self.data.rows(rows.example[mine])]
        width = int(self._lengths(rows.example)[0].max())
        return Batch(index=torch.from_numpy(rows.number[mine]), tokens=_padded(images, width, self.data.tokenizer.pad))


class _Several:
    """Batches of several parts in turn."""

    n_cut = 0

    def __init__(self, batches: Batches) -> None:
        self.inner = [dataclasses.replace(batches, split=part) for part in batches.split.parts]
        self.seed = batches.seed

    def order(self) -> Any:
        return Turns([inner._order for inner in self.inner], self.seed)

    def width(self, turn: Turn) -> int:
        width: int = self.inner[turn.part]._source.width(turn.rows)
        return width

    def batch(self, turn: Turn, mine: slice) -> Batch:
        batch = self.inner[turn.part]._source.batch(turn.rows, mine)
        return batch.annotate(TaskNumber(torch.full((len(batch),), turn.part)))


def shortened(ids: NDArray[Any], limit: int, cut: str) -> NDArray[Any]:
    """Return what is left of a sequence that may be longer than a limit."""
    if len(ids) <= limit or cut == "head":
        return ids[:limit]
    first = limit // 4 if cut == "both" else 0
    return np.concatenate([ids[:first], ids[len(ids) - (limit - first) :]])


def _padded(rows: Sequence[NDArray[Any]], width: int, pad: int) -> Tensor:
    out = np.full((len(rows), width), pad, np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out)


def _keep(lengths: Indices, mine: slice) -> Tensor:
    return torch.from_numpy(np.arange(int(lengths.max())) < lengths[mine, None])


_SOURCES: dict[str, Any] = {"text": _Windows, "pairs": _PaddedPairs, "labelled": _Labelled, "images": _Images}
_SOURCES["several"] = _Several
