"""Answers joined over windows, and how they are compared with the right ones."""

import math

import pytest
import torch

from kinfolk.core.batch import Batch
from kinfolk.data import Tokenizer
from kinfolk.data.files.questions import Question
from kinfolk.data.splits.answering import AnswerSplit, WindowReading
from kinfolk.objectives.measures.answers import Answers, WindowAnswers, exact, overlap, plain_words
from kinfolk.objectives.supervised import SpanAnswer
from kinfolk.train.judgement import tally_of
from tests.train.test_judgement import said

CONTEXT = "one two three four five six seven eight"


def test_words_as_they_are_compared():
    assert plain_words("The  Cat, a dog's an-tic!") == ["cat", "dogs", "antic"]
    assert exact("the cat.", ["Dog", "Cat"]) == 1.0
    assert exact("", []) == exact("the", ["a"]) == 1.0
    assert exact("cat", []) == overlap("cat", []) == 0.0
    # two of three words on either side
    assert overlap("black cat sat", ["a cat sat down", "x"]) == pytest.approx(2 / 3)
    assert overlap("cat cat", ["cat"]) == pytest.approx(2 / 3)
    assert overlap("", ["cat"]) == 0.0


def asked(*answers, always=True, window=24, stride=8):
    questions = [
        Question(str(i), "why?", CONTEXT, ((CONTEXT.index(text), text),) if text else ())
        for i, text in enumerate(answers)
    ]
    return AnswerSplit("valid", Tokenizer.byte(), questions, WindowReading(window, stride), always=always)


def scores(split, wanted, none=0.0):
    """Scores of each window: `wanted` maps a text to its score, wherever a window holds all of it."""
    starts = [start for _ in split.questions for start, _ in split.reading.windows(len("why?"), len(CONTEXT))]
    for window, first in enumerate(starts):
        begin, end = split.text_at(window)
        rows = torch.full((1, end + 1, 2), -9.0)
        rows[0, 0] = none / 2
        # what stands outside the text is never an answer, however high
        rows[0, 1:begin] = rows[0, end:] = 99.0
        shown = CONTEXT[first : first + end - begin]
        for text, score in wanted.items():
            if text in shown:
                at = begin + shown.index(text)
                rows[0, at, 0] = rows[0, at + len(text) - 1, 1] = score / 2
        yield window, rows


def join(split, wanted, none=0.0, longest=12):
    found = WindowAnswers(split, longest)
    for window, rows in scores(split, wanted, none):
        found.add(rows, [window])
    return found


def test_the_best_span_of_all_windows_is_the_answer():
    split = asked("two", "seven")
    assert len(split) > 4
    found = join(split, {"two": 4.0, "seven": 6.0, "four": 5.0})
    answer = found.answer(0, 0.0, always=True)
    assert (answer.text, CONTEXT[answer.start : answer.stop]) == ("seven", "seven")
    assert 0.5 < answer.score < 1.0
    assert answer.margin == pytest.approx(6.0)
    # too long a span is none
    assert join(split, {"three": 6.0, "six": 5.0}, longest=4).answer(0, 0.0, always=True).text == "six"


def test_the_share_of_an_answer_is_among_all_spans():
    split = asked("two", window=60)
    assert len(split) == 1
    ((window, rows),) = scores(split, {"two": 4.0}, none=3.0)
    found = WindowAnswers(split, 5)
    found.add(rows, [window])
    begin, end = split.text_at(0)
    spans = [float(rows[0, i, 0] + rows[0, j, 1]) for i in range(begin, end) for j in range(i, min(i + 5, end))]
    total = sum(map(math.exp, spans))
    assert found.answer(0, 0.0, always=True).score == pytest.approx(math.exp(4) / total)
    assert found.answer(0, 0.0, always=False).score == pytest.approx(math.exp(4) / (total + math.exp(3)))
    none = found.answer(0, 2.0, always=False)
    assert (none.text, none.score) == ("", pytest.approx(math.exp(3) / (total + math.exp(3))))


def test_no_answer_has_a_threshold():
    split = asked("two", "", "six", always=False)
    tally = Answers(split)
    mine = {0: {"two": 5.0}, 1: {"four": 1.0}, 2: {"six": 2.0}}
    for i, wanted in mine.items():
        for window, rows in scores(split, wanted, none=1.5):
            if split.question_of(window) == i:
                tally.add(said(rows), Batch(index=torch.tensor([window]), tokens=torch.zeros(1, 1)))
    assert [tally.answer(i).text for i in range(3)] == ["two", "", "six"]
    assert tally.values() == {"answer-f1": 1.0, "answer-exact": 1.0}
    strict = tally.plain()
    assert strict["no_answer"]["best_f1"] == 1.0
    assert -0.5 < strict["no_answer"]["best_threshold"] < 0.5
    tally.threshold = 1.0
    assert [tally.answer(i).text for i in range(3)] == ["two", "", ""]
    assert tally.values()["answer-f1"] == pytest.approx(2 / 3)
    rows = tally.plain()
    assert rows["with_answer"] == {"questions": 2, "exact": 0.5, "f1": 0.5}
    assert rows["without_answer"] == {"questions": 1, "exact": 1.0, "f1": 1.0}
    assert rows["no_answer"]["best_threshold"] < 0.5
    assert any("without answer" in line for line in tally.sentences())


def test_the_window_least_sure_of_no_answer_speaks_for_all():
    split = asked("two", always=False)
    found = WindowAnswers(split, 12)
    for window, rows in scores(split, {"two": 5.0}):
        rows[0, 0] = 1.0 + window
        found.add(rows, [window])
    assert len(split) > 2
    assert found.answer(0, 0.0, always=False).margin == pytest.approx(5.0 - 2.0)


def test_only_questions_that_were_read_count():
    split = asked("two", "six")
    tally = tally_of(SpanAnswer(), split)
    assert isinstance(tally, Answers)
    assert tuple(tally.values()) == ("answer-f1", "answer-exact")
    for window, rows in scores(split, {"two": 5.0}):
        if split.question_of(window) == 0:
            tally.add(said(rows), Batch(index=torch.tensor([window]), tokens=torch.zeros(1, 1)))
    assert tally.values()["answer-exact"] == 1.0
    assert tally.plain()["questions"] == 1
