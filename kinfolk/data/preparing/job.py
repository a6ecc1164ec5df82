"""One job: read its documents, decide the split of each, write their tokens, leave a record.

What a job writes is a function of the plan and the tokenizer alone, so it does not matter who does it, or when.
"""

import dataclasses
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.durable import write_json
from kinfolk.core.errors import DataError
from kinfolk.core.rng import derive
from kinfolk.data.batches.mixing import fraction, mix
from kinfolk.data.files.label_kinds import label_kind
from kinfolk.data.files.reader import Bad, Document
from kinfolk.data.files.readers import read
from kinfolk.data.preparing.manifest import TOKENIZER
from kinfolk.data.preparing.plan import PreparationPlan
from kinfolk.data.preparing.shards import ShardWriter
from kinfolk.data.splits.labels import refuse_many, written
from kinfolk.data.tokenizers.tokenizer import Tokenizer

WORK = "work"
PLAN = "plan.json"
HELD_OUT = "held-out.json"

# texts are encoded together up to this many characters
_TOGETHER = 1 << 20
_PLACES = 1 << 10
_TELL = 32

Tell = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class PreparationWorkshop:
    """A folder in the making: finished shards in it, everything unfinished in its `work` folder.

    below: documents whose number in `places` is lower are held out for validation.
    """

    folder: Path
    plan: PreparationPlan
    tokenizer: Tokenizer
    below: float

    @classmethod
    def open(cls, folder: Path) -> "PreparationWorkshop":
        """Read what a worker needs."""
        plan = PreparationPlan.from_plain(json.loads((folder / WORK / PLAN).read_bytes()))
        below = json.loads((folder / WORK / HELD_OUT).read_bytes())["below"]
        return cls(folder, plan, Tokenizer.load(folder / TOKENIZER), below)

    def record(self, job: int) -> Path:
        """Return the file whose presence says that a job is done."""
        return self.folder / WORK / f"job-{job:05d}.json"

    def bad_rows(self, job: int) -> Path:
        """Return the file with the bad rows of a job, one a line."""
        return self.folder / WORK / f"bad-{job:05d}.jsonl"


def places(seed: int, job: int) -> Iterator[float]:
    """Yield a number in [0, 1) for each document of a job; the documents with the lowest are held out."""
    key = derive(seed, "split")
    for start in itertools.count(0, _PLACES):
        yield from fraction(mix(key, job, np.arange(start, start + _PLACES))).tolist()


def documents(plan: PreparationPlan, job: int, tell: Tell) -> Iterator[tuple[str, Document | Bad]]:
    """Yield the documents and bad rows of a job, with the file each is from, and tell how many bytes were read."""
    for span in plan.jobs[job]:
        source = plan.sources[span.source]
        source.check_unchanged()
        reader = read(source, span, plan.choices, plan.piece)
        told = 0
        for i, item in enumerate(reader):
            # rows may be many and short, and a bar need not know each; a file is read ahead of them
            if i % _TELL == 0 and (now := min(reader.consumed, span.size)) > told:
                tell(now - told)
                told = now
            yield source.path, item
        tell(span.size - told)


def run_job(shop: PreparationWorkshop, job: int, tell: Tell) -> None:
    """Do one job. Its record is written last, so a job is either done or to be done again."""
    with ExitStack() as stack:
        splits = {name: _SplitWriter(shop, stack, f"{name}-{job:05d}") for name in ("train", "valid")}
        bad = _BadRows(shop, stack, job)
        lowest, place = 1.0, places(shop.plan.choices.seed, job)
        for path, item in documents(shop.plan, job, tell):
            if isinstance(item, Bad):
                bad.add(path, item)
                continue
            where = next(place)
            splits["valid" if where < shop.below else "train"].add(item)
            lowest = min(lowest, where)
        record = {name: writer.finish() for name, writer in splits.items()}
        bad.finish()
        write_json(shop.record(job), {"splits": record, "bad": bad.reasons, "lowest": lowest, "below": shop.below})


class _SplitWriter:
    """The tokens of one split of one job."""

    def __init__(self, shop: PreparationWorkshop, stack: ExitStack, name: str) -> None:
        self.tokenizer, self.final = shop.tokenizer, shop.folder / name
        self.choices = shop.plan.choices
        self.pairs, self.labelled = self.choices.pairs, bool(self.choices.label_column)
        aside = shop.folder / WORK / f"{name}.{os.getpid()}"
        self.writer = stack.enter_context(ShardWriter(aside, shop.tokenizer.dtype))
        self.counts = dict.fromkeys(("documents", "tokens", "scored", "bytes", "unknown"), 0)
        self.labels: Counter[str] = Counter()
        self._waiting: list[str] = []
        self._waiting_labels: list[str] = []
        self._waiting_size = 0

    def add(self, document: Document) -> None:
        """Take a document; it is encoded together with others."""
        self._waiting.extend(document.texts)
        self._waiting_size += sum(document.sizes)
        self.counts["documents"] += 1
        # what is scored is the text, or the target of a pair; all that is labelled is read
        self.counts["bytes"] += sum(document.sizes) if self.labelled else document.sizes[-1]
        if self.labelled:
            self._waiting_labels.append(document.label)
            self.labels.update(label_kind(self.choices.labels).names(document.label))
            refuse_many(self.labels, self.choices)
        if self._waiting_size >= _TOGETHER:
            self._flush()

    def finish(self) -> dict[str, Any]:
        """Move the shard into place and return what is in it; an empty one leaves no files."""
        self._flush()
        # what an earlier run may have left there
        for suffix in (".bin", ".idx"):
            self.final.with_name(self.final.name + suffix).unlink(missing_ok=True)
        files = self.writer.finish(self.final) if self.writer.n_sequences else {}
        labels = {"labels": dict(sorted(self.labels.items()))} if self.labels else {}
        return {**self.counts, **labels, "sequences": self.writer.n_sequences, "files": files}

    def _flush(self) -> None:
        ids = self.tokenizer.encode_batch(self._waiting)
        scored = ids[1::2] if self.pairs else ids
        self.counts["scored"] += sum(map(len, scored)) + len(scored) * (1 if self.pairs or self.labelled else 2)
        if self.tokenizer.kind != "byte":
            self.counts["unknown"] += sum(int((x == self.tokenizer.unk).sum()) for x in scored)
        self.writer.add(self._sequences(ids))
        self.counts["tokens"] = self.writer.n_tokens
        self._waiting, self._waiting_labels, self._waiting_size = [], [], 0

    def _sequences(self, ids: Sequence[NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """Return what is written: texts between bos and eos, pairs as they are, texts followed by their labels."""
        if self.pairs:
            return ids
        if not self.labelled:
            return [self._whole(x) for x in ids]
        n = len(ids) // max(1, len(self._waiting_labels))
        labels = (written(label) for label in self._waiting_labels)
        return [x for i, label in enumerate(labels) for x in (*ids[i * n : (i + 1) * n], label)]

    def _whole(self, ids: NDArray[Any]) -> NDArray[Any]:
        whole = np.empty(len(ids) + 2, self.tokenizer.dtype)
        whole[0], whole[-1] = self.tokenizer.bos, self.tokenizer.eos
        whole[1:-1] = ids
        return whole


class _BadRows:
    """The rows of a job that cannot be used: an error at the first, or a file with one line for each."""

    def __init__(self, shop: PreparationWorkshop, stack: ExitStack, job: int) -> None:
        self.stop = shop.plan.choices.on_bad == "stop"
        self.final = shop.bad_rows(job)
        self.reasons: Counter[str] = Counter()
        self._stack = stack
        self._file: BinaryIO | None = None

    def add(self, path: str, bad: Bad) -> None:
        """Stop, or count and write down."""
        if self.stop:
            raise DataError(f"{path}:{bad.line}: {bad.why} (kin prepare --on-bad skip leaves such rows out)")
        self.reasons[bad.reason] += 1
        if self._file is None:
            self._file = self._stack.enter_context(self.final.with_suffix(f".{os.getpid()}").open("wb"))
        self._file.write(bad_line(path, bad))

    def finish(self) -> None:
        """Move the list into place."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self.final.with_suffix(f".{os.getpid()}").replace(self.final)


def bad_line(path: str, bad: Bad) -> bytes:
    """Return a bad row as a line of JSON."""
    row = {"file": path, "line": bad.line, "reason": bad.reason, "detail": bad.detail}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
