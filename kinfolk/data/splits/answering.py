"""Question answering over long contexts: sliding windows of tokens, each with the answer span if it holds it."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.core.errors import DataError
from kinfolk.data.files.questions import Question, is_questions, read_questions
from kinfolk.data.files.treebank import held_out, parted
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.asking import DataRequest
from kinfolk.data.splits.split import Data, Indices, Split, fingerprint
from kinfolk.data.splits.text_labels import TextLabels
from kinfolk.data.tokenizers.aligned import Aligned, aligned
from kinfolk.data.tokenizers.learn import make_tokenizer
from kinfolk.data.tokenizers.tokenizer import Tokenizer

WINDOW, STRIDE, LONGEST_QUESTION = 384, 128, 64
"""As Devlin et al. 2019 read SQuAD."""

_MARKS = 3


@dataclasses.dataclass(frozen=True)
class WindowReading:
    """How long texts are read.

    window: tokens of a whole row: the question, the part of the context, and the marks around them.
    stride: tokens between the beginnings of two windows.
    """

    window: int = WINDOW
    stride: int = STRIDE

    def __post_init__(self) -> None:
        for name, value in (("window", self.window), ("stride", self.stride)):
            if value < 1:
                raise DataError(f"{name}: must be at least 1, not {value}")
        if self.window < 4 * _MARKS:
            raise DataError(f"window: {self.window} tokens leave no room for a question and a text; use {4 * _MARKS}")

    @property
    def question(self) -> int:
        """The most tokens of a question; it leaves at least half of a window to the text."""
        return min(LONGEST_QUESTION, (self.window - _MARKS) // 2)

    def windows(self, question: int, context: int, between: int = 1) -> Iterator[tuple[int, int]]:
        """Yield where windows of a context begin and end, the last where the context ends.

        between: marks between the question and the context; one more comes first, and one last.
        """
        room = self.window - between - 2 - min(question, self.question)
        step, start = min(self.stride, room), 0
        while True:
            yield start, min(start + room, context)
            if start + room >= context:
                return
            start += step


def open_answering(
    name: str, path: Path, choices: Preparation, valid: Path | None = None, reading: WindowReading | None = None
) -> Data:
    """Return the questions of a file; those held out for validation are about contexts of their own."""
    reading, questions = reading or WindowReading(), read_questions(path)
    if valid is None:
        # all questions about a text go to one part, or validation would be about texts that were learnt
        contexts = {q.context: i for i, q in reversed(list(enumerate(questions)))}
        order = sorted(contexts, key=contexts.__getitem__)
        out = {order[i] for i in held_out(len(order), choices)}
        parts = parted(questions, {i for i, q in enumerate(questions) if q.context in out})
    else:
        parts = {"train": questions, "valid": read_questions(valid)}
    sample = (text for q in questions for text in (q.question, q.context))
    tokenizer = make_tokenizer(choices, sample)
    always = all(q.answers for part in parts.values() for q in part)
    splits: dict[str, Split] = {
        part: AnswerSplit(part, tokenizer, mine, reading, always=always) for part, mine in parts.items()
    }
    content = {part: [[q.id, q.question, q.context, q.answers] for q in mine] for part, mine in parts.items()}
    described = fingerprint(content, tokenizer.to_json(), dataclasses.astuple(reading), "answers v1")
    return Data(name, "labelled", tokenizer, described, splits)


class AnswerSpans(TextLabels, kind="span"):
    """The span of a context that answers a question: SQuAD's JSON, or JSON lines with its three keys."""

    def in_file(self, what: DataRequest) -> bool:
        """Tell by the name, or by the keys of the first row."""
        if is_questions(what.path):
            return True
        keys, row = {"question", "context", "answers"}, what.first_row
        return keys <= set(row) and "text" not in what.settings and not isinstance(row.get("tokens"), list)

    def open(self, name: str, what: DataRequest, choices: Preparation, valid: Path | None) -> Data:
        """Open questions, with windows of their contexts."""
        reading = WindowReading(what.number("window", WINDOW), what.number("stride", STRIDE))
        return open_answering(name, what.path, choices, valid, reading)


class AnswerSplit(Split):
    """Windows: a question, a part of its context, and the first and the last token of the answer in that part, or -1.

    An answer that is not whole in a window is no answer there; `answers_cut` counts those that are whole in none, and
    `questions_cut` the questions that lose their end. always: every question of the data has an answer.
    """

    kind, asks, from_file = "labelled", "span", True
    n_bytes: int = 0

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        questions: Sequence[Question],
        reading: WindowReading,
        *,
        always: bool = True,
        labelled: bool = True,
    ) -> None:
        self.name, self.tokenizer, self.questions, self.reading = name, tokenizer, questions, reading
        self.always, self.row = always, reading.window
        places = {text: i for i, text in enumerate(dict.fromkeys(q.context for q in questions))}
        self._contexts = aligned(tokenizer, list(places))
        self._context = [places[q.context] for q in questions]
        question_ids = tokenizer.encode_batch([q.question for q in questions])
        self.questions_cut = sum(len(ids) > reading.question for ids in question_ids)
        self._asked = [ids[: reading.question].astype(np.int64) for ids in question_ids]
        rows = [row for i in range(len(questions)) for row in self._windows(i, labelled)]
        self._rows = np.array(rows, np.int64).reshape(-1, 5)
        answered = set(self._rows[self._rows[:, 3] >= 0, 0].tolist())
        self.answers_cut = (
            sum(bool(q.answers) and i not in answered for i, q in enumerate(questions)) if labelled else 0
        )
        self.n_bytes = sum(len(q.question.encode()) + len(q.context.encode()) for q in questions)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def n_tokens(self) -> int:
        """Tokens of all windows, ends included."""
        question, context = self.lengths(np.arange(len(self)))
        return int(question.sum() + context.sum()) + 2 * len(self)

    def described(self) -> dict[str, Any]:
        """Return what must be known to read other questions in the same way."""
        return {"window": self.reading.window, "stride": self.reading.stride, "always": self.always}

    def lengths(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return the lengths of the questions and of the parts of contexts."""
        rows = self._rows[indices]
        return np.array([len(self._asked[i]) for i in rows[:, 0]], np.int64), rows[:, 2] - rows[:, 1]

    def examples(self, indices: Indices) -> list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
        """Return the token ids of questions and of parts of contexts, and the first and last token of the answer."""
        examples = []
        for question, start, stop, first, last in self._rows[indices]:
            context = self.context(int(question)).ids[start:stop].astype(np.int64)
            examples.append((self._asked[question], context, np.array([first, last])))
        return examples

    def joined(self, other: "AnswerSplit") -> "AnswerSplit":
        """Return the questions of both, one split after the other."""
        questions, always = [*self.questions, *other.questions], self.always and other.always
        return AnswerSplit(self.name, self.tokenizer, questions, self.reading, always=always)

    def question_of(self, window: int) -> int:
        """Return the number of the question that a window is about."""
        return int(self._rows[window, 0])

    def whole_of(self, index: int) -> int:
        """Return the number of the question that a window is about."""
        return self.question_of(index)

    def context(self, question: int) -> Aligned:
        """Return the tokens of the context of a question."""
        return self._contexts[self._context[question]]

    def text_at(self, window: int) -> tuple[int, int]:
        """Return where in a row (mark, question, marks, text, mark) the text of a window begins and ends."""
        question, start, stop = self._rows[window, :3]
        before = 1 + len(self._asked[question]) + self.tokenizer.between
        return before, before + int(stop - start)

    def characters(self, window: int, first: int, last: int) -> tuple[int, int]:
        """Return the characters of the context at some positions of a row."""
        question, start = (int(x) for x in self._rows[window, :2])
        shift = start - self.text_at(window)[0]
        return self.context(question).characters(first + shift, last + shift, self.questions[question].context)

    def _windows(self, i: int, labelled: bool) -> Iterator[tuple[int, int, int, int, int]]:
        q, context = self.questions[i], self.context(i)
        if not len(context) or not len(self._asked[i]):
            raise DataError(f"{q.where or q.id}: the tokenizer leaves nothing of the question or of the context")
        first = last = -1
        if labelled and q.answers:
            # the first of several is learnt, as everybody does; all of them are right
            begin, text = q.answers[0]
            first, last = context.tokens(begin, begin + len(text))
            if first > last:
                raise DataError(f"{q.where or q.id}: the tokenizer leaves nothing of the answer {text!r:.60}")
        for start, stop in self.reading.windows(len(self._asked[i]), len(context), self.tokenizer.between):
            inside = start <= first and last < stop and first >= 0
            yield (i, start, stop, first - start if inside else -1, last - start if inside else -1)
