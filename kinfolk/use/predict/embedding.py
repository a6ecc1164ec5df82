"""Embeddings of texts: one vector for each, pooled from a model's states."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.core import durable
from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError, SpecError, TrainingError, suggest
from kinfolk.data import Tokenizer
from kinfolk.data.files.reader import FileRow
from kinfolk.data.splits.asking import settings_of
from kinfolk.data.tokenizers.unknown import warn_of_unknown
from kinfolk.layers.heads.vector_head import VectorHead
from kinfolk.models.model import Transformer
from kinfolk.objectives.supervised import Labels
from kinfolk.ops.pooled_vector import POOLS, readout
from kinfolk.runs.run import ExportedRun, Run

ENDINGS = (".jsonl", ".npy")
Vector = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, eq=False)
class Embedder:
    """A model that gives vectors.

    answer: from a batch to states and what the head says. pool: how states become one vector; "" is the head's own way.
    unit: divide vectors by their length. length: the most tokens of a text, marks included. marks: before and after it.
    column: where the run's own data had its texts.
    """

    tokenizer: Tokenizer
    answer: Callable[[Batch], tuple[Tensor, Tensor]]
    pool: str
    unit: bool
    length: int
    marks: tuple[list[int], list[int]]
    column: str = "text"

    def vectors(self, texts: list[str], batch_size: int = 32) -> tuple[Vector, int]:
        """Return the vectors of texts, and how many of them were cut."""
        before, after = self.marks
        room = self.length - len(before) - len(after)
        coded = self.tokenizer.encode_batch(texts)
        warn_of_unknown(self.tokenizer, coded, "the texts")
        rows = [[*before, *ids[:room].tolist(), *after] for ids in coded]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        found: list[Any] = [None] * len(rows)
        for start in range(0, len(order), batch_size):
            mine = order[start : start + batch_size]
            for i, vector in zip(mine, self.of_rows([rows[i] for i in mine]), strict=True):
                found[i] = vector
        return np.stack(found).astype(np.float32), sum(len(ids) > room for ids in coded)

    def of_rows(self, rows: list[list[int]]) -> Any:
        """Return the vectors of ids that have their marks already."""
        width = max(map(len, rows))
        tokens = torch.tensor([row + [self.tokenizer.pad] * (width - len(row)) for row in rows])
        keep = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
        batch = Batch(index=torch.arange(len(rows)), tokens=tokens, keep=keep, segments=torch.zeros_like(tokens))
        hidden, said = self.answer(batch)
        vectors = readout(hidden, keep, self.pool) if self.pool else said
        if not bool(vectors.isfinite().all()):
            raise TrainingError("a vector is not finite, so the model cannot be used")
        return (torch.nn.functional.normalize(vectors, dim=-1) if self.unit else vectors).float().numpy()


def open_embedder(
    path: str | Path | Run,
    *,
    pool: str = "",
    unit: bool | None = None,
    length: int | None = None,
    answer: Callable[[Batch], tuple[Tensor, Tensor]] | None = None,
) -> Embedder:
    """Open a run for its vectors. A head that pools does so in its own way unless told otherwise; others take the mean.

    unit: None is the head's own way, too. length: the most tokens of a text; None is what the run was made for. answer:
    another engine than PyTorch.
    """
    run = Run.open(path)
    recipe, tokenizer = run.recipe, run.tokenizer
    head = recipe.model.head
    if recipe.model.topology == "encoder-decoder":
        raise SpecError(f"{run.path}: an encoder-decoder has two rows of states, and no vector of a text is agreed on")
    if pool and pool not in POOLS:
        raise SpecError(f"pool: unknown {pool!r}{suggest(pool, POOLS)}")
    own, origin = isinstance(head, VectorHead), run.metadata.imported
    limit = length or (origin.length if origin else None) or run.limit or recipe.model.max_len
    if run.limit is not None and limit > run.limit:
        raise SpecError(f"length: {limit} is more than the {run.limit} positions of the model")
    return Embedder(
        tokenizer=tokenizer,
        answer=answer or (run.engine().answer if isinstance(run, ExportedRun) else _torch(run.model())),
        pool=pool or ("" if own else "mean"),
        unit=bool(unit) if unit is not None else own and isinstance(head, VectorHead) and head.length == "unit",
        length=limit,
        marks=_marks(tokenizer, recipe.objective),
        column=settings_of(run.metadata.data.name).get("text", "text"),
    )


def _marks(tokenizer: Tokenizer, objective: Any) -> tuple[list[int], list[int]]:
    """Return the special tokens around a text: what the tokenizer says, or what the model learnt to read."""
    if tokenizer.around is not None:
        return tokenizer.around
    if isinstance(objective, Labels):
        return [tokenizer.cls] if objective.opening == "cls" else [], [tokenizer.eos]
    return [tokenizer.bos], [tokenizer.eos]


def _torch(model: Transformer) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    model.train(False)
    pools = isinstance(model.spec.head, VectorHead)

    def answer(batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.inference_mode():
            output = model.run(batch)
            # what other heads say of every token would only be thrown away
            return output.hidden, output.logits if pools else output.hidden

    return answer


def embed(
    embedder: Embedder,
    rows: Iterable[FileRow | DataError],
    *,
    column: str = "text",
    batch_size: int = 32,
    chunk: int = 1024,
) -> Iterator[tuple[list[FileRow], Vector, int]]:
    """Yield chunks of rows with their vectors, and how many of the texts were cut."""
    held: list[FileRow] = []
    for row in rows:
        if isinstance(row, DataError):
            raise row
        # a line without text is a row like the others, so that vectors stay in line with their file
        row.text(column, empty=True)
        held.append(row)
        if len(held) == chunk:
            yield held, *embedder.vectors([r.values[column] for r in held], batch_size)
            held = []
    if held:
        yield held, *embedder.vectors([r.values[column] for r in held], batch_size)


@contextmanager
def vector_writer(out: Path) -> Iterator[Callable[[list[FileRow], Vector], None]]:
    """Write vectors to JSON lines, or to a NumPy file of [rows, numbers], aside until they are finished."""
    if out.suffix not in ENDINGS:
        raise DataError(f"{out}: vectors are written as {' or '.join(ENDINGS)}{suggest(out.suffix, ENDINGS)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    shape = [0, 0]

    def line(rows: list[FileRow], vectors: Vector) -> None:
        for row, vector in zip(rows, vectors, strict=True):
            said = {"line": row.line} | ({"id": row.values["id"]} if "id" in row.values else {})
            file.write((json.dumps(said | {"vector": [float(x) for x in vector]}) + "\n").encode())

    def block(rows: list[FileRow], vectors: Vector) -> None:
        if not shape[1]:
            shape[1] = vectors.shape[1]
            _header(file, 0, shape[1])
        shape[0] += len(vectors)
        file.write(np.ascontiguousarray(vectors, "<f4").tobytes())

    with durable.appearing(out) as aside, aside.open("wb") as file:
        yield line if out.suffix == ".jsonl" else block
        if out.suffix == ".npy":
            # how many there are is known now; the header keeps room for it
            file.seek(0)
            _header(file, *shape)


def _header(file: Any, n: int, width: int) -> None:
    """Write the header of a NumPy file, which NumPy makes of one size whatever the number of rows."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (n, width)}
    np.lib.format.write_array_header_1_0(file, header)
