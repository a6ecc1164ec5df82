"""Question answering: SQuAD's JSON, version 1.1 or 2, and JSON lines; answers are places in a context."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinfolk.core.errors import DataError, suggest
from kinfolk.data.files.json_lines import json_rows
from kinfolk.data.files.reader import Bad, Record
from kinfolk.data.files.sources import BROKEN_GZIP, Bytes, open_bytes
from kinfolk.data.files.text_files import TextReader

Answer = tuple[int, str]
"""Where an answer begins, in characters, and its text."""


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a context, and all answers that are right; none where the context has no answer.

    where: the file and the place in it, for complaints.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    where: str = ""


class QuestionReader(TextReader, kind="json", suffixes=(".json",)):
    """SQuAD's JSON. As rows, each question with its `question`, `context` and `id`; as documents it is running text."""

    streams = False

    def records(self, file: Bytes) -> Iterator[Record | Bad]:
        """Yield the questions; JSON has no rows, so it is read whole."""
        for number, q in enumerate(read_questions(self.source.path, answered=False), 1):
            yield number, {"id": q.id, "question": q.question, "context": q.context}


def is_questions(path: Path) -> bool:
    """Tell by its name whether a file is one of questions."""
    return path.name.lower().removesuffix(".gz").endswith(".json")


def read_questions(path: str | Path, *, answered: bool = True) -> list[Question]:
    """Read the questions of a file. What is wrong is named with its place.

    answered: whether answers must be there; without, questions may come alone.
    """
    lower = str(path).lower().removesuffix(".gz")
    questions = list(_rows(path, answered) if lower.endswith((".jsonl", ".ndjson")) else _articles(path, answered))
    if not questions:
        raise DataError(f"{path}: holds no question")
    return questions


def _rows(path: str | Path, answered: bool) -> Iterator[Question]:
    for number, row in json_rows(path):
        yield question_of(row, f"{path}:{number}", row.get("context"), answered=answered, identifier=str(number))


def _articles(path: str | Path, answered: bool) -> Iterator[Question]:
    data = _whole(path)
    if not isinstance(data, dict) or not isinstance(data.get("data"), list):
        raise DataError(f"{path}: not a file of questions: it has no list 'data' of articles, as SQuAD's files have")
    for i, article in enumerate(data["data"]):
        for j, paragraph in enumerate(_list(article, "paragraphs", f"{path}: data[{i}]")):
            at = f"{path}: data[{i}].paragraphs[{j}]"
            for k, row in enumerate(_list(paragraph, "qas", at)):
                where = f"{at}.qas[{k}]"
                if isinstance(row, dict) and isinstance(row.get("id"), str):
                    where += f" ({row['id']})"
                yield question_of(row, where, paragraph.get("context"), answered=answered, identifier=f"{i}.{j}.{k}")


def _whole(path: str | Path) -> Any:
    try:
        with open_bytes(str(path)) as file:
            return json.loads(file.read().decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not valid UTF-8: byte {error.start}") from None
    except BROKEN_GZIP as error:
        raise DataError(f"{path}: broken gzip: {error}") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None


def _list(row: Any, key: str, where: str) -> list[Any]:
    if not isinstance(row, dict) or not isinstance(row.get(key), list):
        raise DataError(f"{where}: no list {key!r}{suggest(key, row) if isinstance(row, dict) else ''}")
    items: list[Any] = row[key]
    return items


def question_of(row: Any, where: str, context: Any, *, answered: bool, identifier: str) -> Question:
    """Return a row as a question, or refuse it."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: not a JSON object: found {type(row).__name__}")
    for key, value in (("question", row.get("question")), ("context", context)):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: no {key}" + ("" if value in (None, "") else f": found {value!r:.80}"))
    rows = row.get("answers", None)
    impossible = row.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise DataError(f"{where}: is_impossible is {impossible!r}, not true or false")
    # JSON lines that were written from tables have two lists instead of a list of pairs
    if isinstance(rows, dict) and {"text", "answer_start"} <= set(rows):
        rows = [{"text": t, "answer_start": s} for t, s in zip(rows["text"], rows["answer_start"], strict=True)]
    if rows is not None and not isinstance(rows, list):
        raise DataError(f"{where}: answers is {type(rows).__name__}, not a list")
    if answered and rows is None and not impossible:
        raise DataError(f"{where}: no answers, and is_impossible is not true")
    if rows and impossible:
        raise DataError(f"{where}: is_impossible is true, and yet there are answers")
    answers = tuple(_answer(answer, str(context), where) for answer in rows or ())
    return Question(str(row.get("id", identifier)), row["question"].strip(), str(context), answers, where)


def _answer(row: Any, context: str, where: str) -> Answer:
    text, start = (row.get("text"), row.get("answer_start")) if isinstance(row, dict) else (None, None)
    if not isinstance(text, str) or not text.strip() or isinstance(start, bool) or not isinstance(start, int):
        raise DataError(f"{where}: an answer has a text and a number answer_start; found {row!r:.80}")
    if start < 0 or context[start : start + len(text)] != text:
        there = context[max(0, start) : max(0, start) + len(text)]
        raise DataError(f"{where}: at character {start} the context has {there!r:.60}, not the answer {text!r:.60}")
    return start, text
