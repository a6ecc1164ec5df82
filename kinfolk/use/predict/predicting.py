"""`predict`: rows in, answers out, in their order and in bounded memory."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError, SpecError, suggest
from kinfolk.data import Batches
from kinfolk.data.files.questions import Question
from kinfolk.data.splits.answering import AnswerSplit
from kinfolk.train.answers import Windows
from kinfolk.train.entities import entities, marks_entities
from kinfolk.use.predict.asking import TextRows, WordRows
from kinfolk.use.predict.examples import Columns, Words, identity, text_of, texts_of, words_of
from kinfolk.use.predict.opening import Opened
from kinfolk.use.predict.pictures import ids, values_of
from kinfolk.use.predict.rows import Row

ON_BAD = ("stop", "skip")
_CHARACTERS = 1 << 22


@dataclasses.dataclass(frozen=True)
class How:
    """What can be chosen.

    batch_size, chunk: rows at once, and rows that are sorted by length together. threshold: above which probability a
    class holds. margin: by how much an answer must beat having none; None: the run's own. top: probabilities of so many
    classes are told, 0: of all. echo: tell the columns of the input too. on_bad: stop at a bad row, or skip it.
    """

    batch_size: int = 32
    chunk: int = 1024
    threshold: float = 0.5
    margin: float | None = None
    top: int = 0
    echo: bool = False
    on_bad: str = "stop"

    def __post_init__(self) -> None:
        for name in ("batch_size", "chunk"):
            if getattr(self, name) < 1:
                raise SpecError(f"{name}: must be at least 1, not {getattr(self, name)}")
        if self.on_bad not in ON_BAD:
            raise SpecError(f"on_bad: unknown {self.on_bad!r}{suggest(self.on_bad, ON_BAD)}")


@dataclasses.dataclass
class Tally:
    """What happened on the way: rows answered, rows that lost their end or were read in parts, and bad rows."""

    rows: int = 0
    cut: int = 0
    parted: int = 0
    bad: list[str] = dataclasses.field(default_factory=list)


def predict(
    run: Opened, rows: Iterable[Row | DataError], how: How | None = None, tally: Tally | None = None
) -> Iterator[dict[str, Any]]:
    """Yield what a run says of each row, in the order of the rows.

    Rows are taken a chunk at a time and read sorted by their lengths, so that little is padding. A row that is bad is
    refused with its line, or skipped and told in `tally`.
    """
    how, tally = how or How(), tally if tally is not None else Tally()
    ask = _ASKED[run.task] if run.picture is None else _of_pictures
    # pictures are of one length, and large
    for chunk in _chunks(_usable(run, rows, how, tally), how.chunk if run.picture is None else how.batch_size):
        said = ask(run, [asked for _, asked in chunk], how, tally)
        tally.rows += len(chunk)
        for (row, _), answer in zip(chunk, said, strict=True):
            shown = row.values if how.echo else {} if run.picture is None else {run.columns.file}
            echoed = {key: x for key, x in row.values.items() if key in shown and key != "id"}
            yield identity(row) | echoed | answer


def _usable(run: Opened, rows: Iterable[Row | DataError], how: How, tally: Tally) -> Iterator[tuple[Row, Any]]:
    """Yield rows with what is asked about them; bad ones end everything, or are counted."""
    for row in rows:
        try:
            if isinstance(row, DataError):
                raise row
            yield row, _ask(run, row)
        except DataError as error:
            if how.on_bad == "stop":
                raise
            tally.bad.append(str(error))


def _ask(run: Opened, row: Row) -> Any:
    columns: Columns = run.columns
    if run.picture is not None:
        return values_of(row, columns.file, run.picture)
    if run.task == "tags":
        return words_of(row, columns)
    if run.task == "span":
        question, context = text_of(row, columns.question), text_of(row, columns.context)
        return Question(str(row.values.get("id", row.line)), question.strip(), context, (), row.where)
    return texts_of(row, columns, run.n_texts)


def _chunks(rows: Iterator[tuple[Row, Any]], size: int) -> Iterator[list[tuple[Row, Any]]]:
    """Yield lists of rows, of at most `size`, and shorter ones where rows are long."""
    chunk: list[tuple[Row, Any]] = []
    held = 0
    for row in rows:
        chunk.append(row)
        held += sum(len(x) for x in row[0].values.values() if isinstance(x, str | list))
        if len(chunk) == size or held >= _CHARACTERS:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def _answers(run: Opened, split: Any, how: How, length: int | None) -> Iterator[tuple[list[int], Tensor, Any]]:
    """Yield which examples of a split a batch holds, what the head says of them, and the batch."""
    batches = Batches(split, batch_size=how.batch_size, length=length, shuffle=False, by_length=0, cut=run.cut)
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        which = batch.index.tolist()
        prepared = run.prepare(batch)
        yield which, run.answer(prepared)[1], prepared


def _blank(run: Opened) -> Any:
    """Return a label that says nothing, for what nobody has judged."""
    return {"class": 0, "number": 0.0, "classes": np.zeros(len(run.classes), np.float32)}[run.task]


def _of_pictures(run: Opened, asked: list[Any], how: How, tally: Tally) -> list[dict[str, Any]]:
    labels = torch.as_tensor(np.array([_blank(run)] * len(asked)))
    batch = Batch(index=torch.arange(len(asked)), tokens=torch.from_numpy(ids(asked)), labels=labels)
    return [_judgement(run, row, how) for row in run.answer(run.prepare(batch))[1].double()]


def _of_texts(run: Opened, asked: list[tuple[str, ...]], how: How, tally: Tally) -> list[dict[str, Any]]:
    split = TextRows(run.tokenizer, asked, run.classes, _blank(run))
    lengths = split.lengths(np.arange(len(split)))
    longest = np.maximum(*lengths) if isinstance(lengths, tuple) else lengths
    tally.cut += int((longest + 1 > run.length).sum())
    found: list[dict[str, Any]] = [{}] * len(asked)
    for which, logits, _ in _answers(run, split, how, run.length):
        for i, row in zip(which, logits.double(), strict=True):
            found[i] = _judgement(run, row, how)
    return found


def _judgement(run: Opened, logits: Tensor, how: How) -> dict[str, Any]:
    """Return what the scores of one row say."""
    if run.task == "number":
        return {"value": float(logits)}
    shares = logits.sigmoid() if run.task == "classes" else logits.softmax(-1)
    order = shares.argsort(descending=True, stable=True).tolist()
    values = shares.tolist()
    kept = sorted(order[: how.top]) if how.top else range(len(values))
    shown = {run.classes[k]: values[k] for k in kept}
    if run.task == "classes":
        return {"labels": [run.classes[k] for k in order if values[k] > how.threshold], "probabilities": shown}
    return {"label": run.classes[order[0]], "score": values[order[0]], "probabilities": shown}


def _of_words(run: Opened, asked: list[Words], how: How, tally: Tally) -> list[dict[str, Any]]:
    split = WordRows(run.tokenizer, [row.words for row in asked], run.classes, run.length)
    tally.parted += split.n_parted
    # an opening mark moves every token one to the right
    shift = int(getattr(run.objective, "opening", "none") == "cls")
    parts: list[tuple[list[int], list[float]]] = [([], [])] * len(split)
    for which, logits, _ in _answers(run, split, how, run.length):
        shares, best = logits.softmax(-1).max(-1)
        for row, i in enumerate(which):
            at = torch.from_numpy(split.firsts[i]) + shift
            parts[i] = best[row, at].tolist(), shares[row, at].tolist()
    tags: list[list[str]] = [[] for _ in asked]
    scores: list[list[float]] = [[] for _ in asked]
    for i, (numbers, shown) in zip(split.row_of, parts, strict=True):
        tags[i] += [run.classes[k] for k in numbers]
        scores[i] += shown
    marked = marks_entities(run.classes)
    found = []
    for words, said, sure in zip(asked, tags, scores, strict=True):
        answer: dict[str, Any] = {"words": list(words.words), "tags": said, "scores": sure}
        found.append(answer | ({"entities": _entities(words, said)} if marked else {}))
    return found


def _entities(words: Words, tags: list[str]) -> list[dict[str, Any]]:
    """Return the entities of a sentence: kind, words, and where they stand in words and, if known, in characters."""
    found = []
    for start, stop, kind in entities(tags):
        entity: dict[str, Any] = {"label": kind, "text": " ".join(words.words[start:stop]), "words": [start, stop]}
        if words.places is not None:
            entity |= {"start": words.places[start][0], "stop": words.places[stop - 1][1]}
        found.append(entity)
    return found


def _of_questions(run: Opened, asked: list[Question], how: How, tally: Tally) -> list[dict[str, Any]]:
    objective: Any = run.objective
    split = AnswerSplit("rows", run.tokenizer, asked, run.reading, always=run.always, labelled=False)
    tally.cut += split.questions_cut
    windows = Windows(split, objective.longest)
    for which, logits, _ in _answers(run, split, how, None):
        windows.add(logits, which)
    always = run.always and how.margin is None
    margin = objective.threshold if how.margin is None else how.margin
    found = []
    for i in range(len(asked)):
        said = windows.answer(i, margin, always=always)
        place = {"start": said.start, "stop": said.stop} if said.text else {"start": None, "stop": None}
        found.append({"answer": said.text, **place, "score": said.score, "margin": said.margin})
    return found


_ASKED: dict[str, Callable[[Opened, Any, How, Tally], list[dict[str, Any]]]] = {
    "class": _of_texts,
    "classes": _of_texts,
    "number": _of_texts,
    "tags": _of_words,
    "span": _of_questions,
}
