"""Questions about texts: read, refused with their place, cut into windows, and their answers put back into the text."""

import json

import numpy as np
import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import Batches, Tokenizer, open_data
from kinfolk.data.files.questions import Question, read_questions
from kinfolk.data.preparing.preparation import Preparation
from kinfolk.data.splits.answering import AnswerSplit, WindowReading
from kinfolk.data.tokenizers.aligned import aligned
from kinfolk.data.tokenizers.learn import make_tokenizer

CONTEXT = "Ada Lovelace wrote the first programme in 1843, for a machine of Babbage\u2019s that was never built."


def squad(*questions, context=CONTEXT):
    return {"version": "v2.0", "data": [{"title": "Ada", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def ask(question, *answers, context=CONTEXT, **more):
    found = [{"text": text, "answer_start": context.index(text)} for text in answers]
    return {"id": question[:4], "question": question, "answers": found, **more}


def write(path, what):
    path.write_text(what if isinstance(what, str) else json.dumps(what), encoding="utf-8")
    return path


def test_answers_are_places(tmp_path):
    asked = (ask("Who wrote it?", "Ada Lovelace", "Ada"), ask("Where?", is_impossible=True))
    who, where = read_questions(write(tmp_path / "a.json", squad(*asked)))
    assert who.answers == ((0, "Ada Lovelace"), (0, "Ada"))
    assert (who.id, where.answers) == ("Who ", ())
    rows = [{"question": "When?", "context": CONTEXT, "answers": {"text": ["1843"], "answer_start": [42]}}]
    (when,) = read_questions(write(tmp_path / "b.jsonl", json.dumps(rows[0]) + "\n"))
    assert (when.answers, when.id) == (((42, "1843"),), "1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"answers": [{"text": "Bob", "answer_start": 0}]},
            "at character 0 the context has 'Ada', not the answer 'Bob'",
        ),
        ({"answers": [{"text": "Ada", "answer_start": -97}]}, "not the answer"),
        ({"answers": [{"text": "Ada"}]}, "an answer has a text and a number"),
        ({"answers": None}, "no answers, and is_impossible is not true"),
        ({"is_impossible": True}, "and yet there are answers"),
        ({"is_impossible": "yes"}, "is_impossible is 'yes'"),
        ({"question": " "}, "no question"),
    ],
)
def test_bad_questions_are_named_with_their_place(tmp_path, change, said):
    path = write(tmp_path / "a.json", squad(ask("When?", "1843"), ask("Who wrote it?", "Ada") | change))
    with pytest.raises(DataError, match=rf"a.json: data\[0\].paragraphs\[0\].qas\[1\] \(Who \): .*{said}"):
        read_questions(path)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"a.json:2: not valid JSON: .* at column 1"):
        read_questions(write(tmp_path / "a.json", '{"data": [\n'))
    with pytest.raises(DataError, match="no list 'data'"):
        read_questions(write(tmp_path / "a.json", [1]))
    with pytest.raises(DataError, match=r"data\[0\]: no list 'paragraphs'"):
        read_questions(write(tmp_path / "a.json", {"data": [{"title": "x"}]}))
    with pytest.raises(DataError, match="holds no question"):
        read_questions(write(tmp_path / "a.json", {"data": []}))


def tokenizers():
    sample = [CONTEXT, "What never was, a programme; built."]
    learnt = [make_tokenizer(Preparation(tokenizer=kind, vocab=320), sample) for kind in ("bpe", "unigram", "word")]
    return [Tokenizer.byte(), make_tokenizer(Preparation(tokenizer="char"), sample), *learnt]


@pytest.mark.parametrize("tokenizer", tokenizers(), ids=lambda t: t.kind)
def test_tokens_know_their_characters(tokenizer):
    (found,) = aligned(tokenizer, [CONTEXT])
    assert np.array_equal(found.ids, tokenizer.encode(CONTEXT))
    for word in ("Ada", "1843", "Babbage", "built", "never"):
        start = CONTEXT.index(word)
        first, last = found.tokens(start, start + len(word))
        assert found.characters(first, last, CONTEXT) == (start, start + len(word))
        assert tokenizer.decode(found.ids[first : last + 1]).strip() == word
    if tokenizer.kind != "word":
        start = CONTEXT.index("\u2019")
        first, last = found.tokens(start, start + 1)
        assert first <= last
        assert "\u2019" in CONTEXT[slice(*found.characters(first, last, CONTEXT))]


def test_long_texts_are_placed_in_parts(monkeypatch):
    tokenizer = tokenizers()[2]
    monkeypatch.setattr("kinfolk.data.tokenizers.tokenizer.PART", 40)
    (found,) = aligned(tokenizer, [CONTEXT])
    start = CONTEXT.index("built")
    assert found.characters(*found.tokens(start, start + 5), CONTEXT) == (start, start + 5)


@pytest.mark.parametrize(("window", "stride"), [(30, 8), (30, 100), (64, 16), (400, 128)])
def test_windows_cover_the_context_and_hold_whole_answers(window, stride):
    asked = [Question("1", "Who?", CONTEXT, ((0, "Ada Lovelace"),)), Question("2", "When?", CONTEXT, ((42, "1843"),))]
    split = AnswerSplit("train", Tokenizer.byte(), asked, WindowReading(window, stride))
    questions, contexts = split.lengths(np.arange(len(split)))
    assert ((questions + contexts + 3) <= window).all()
    lost = 0
    for number, question in enumerate(asked):
        mine = [w for w in range(len(split)) if split.question_of(w) == number]
        covered, held = set(), 0
        for w in mine:
            _, ids, (first, last) = split.examples(np.array([w]))[0]
            begin, end = split.text_at(w)
            covered |= set(range(*split.characters(w, begin, end - 1)))
            if first >= 0:
                held += 1
                start, stop = split.characters(w, begin + first, begin + last)
                assert CONTEXT[start:stop] == question.answers[0][1]
                assert last < len(ids)
        assert covered >= {i for i, letter in enumerate(CONTEXT) if letter != " "}
        assert held >= (stride < window)
        assert len(mine) == 1 or held < len(mine)
        lost += not held
    assert split.answers_cut == lost


def test_rows_stand_as_the_positions_say(tmp_path):
    from kinfolk.core.rng import Rng
    from kinfolk.objectives.supervised import SpanAnswer
    from kinfolk.runs.vocabulary import vocabulary_of

    asked = (ask("Who wrote it?", "Ada Lovelace"), ask("When was it?", "1843"), ask("Where?", is_impossible=True))
    path = write(tmp_path / "a.json", squad(*asked))
    data = open_data(f"labelled:window=64,stride=20:{path}", valid=path)
    split = data.split("train")
    assert (split.asks, split.row, split.always) == ("span", 64, False)
    batch = Batches(split, batch_size=len(split), length=64, shuffle=False).at(0)
    batch = SpanAnswer().prepare(batch, Rng(0), vocabulary_of(data.tokenizer))
    assert batch.tokens.shape[1] <= 64
    answers = set()
    for w, (first, last) in enumerate(batch.labels.tolist()):
        begin, end = split.text_at(w)
        assert data.tokenizer.decode(batch.tokens[w, begin:end]) in CONTEXT
        if first:
            assert begin <= first <= last < end
            answers.add(data.tokenizer.decode(batch.tokens[w, first : last + 1]))
    assert answers == {"Ada Lovelace", "1843"}


def test_no_text_is_in_both_parts(tmp_path):
    whole = {
        "data": [
            squad(ask("Who is it?", f"{i}", context=f"It is {i}."), context=f"It is {i}.")["data"][0] for i in range(9)
        ]
    }
    whole["data"] += whole["data"][:4]
    data = open_data(f"labelled:{write(tmp_path / 'a.json', whole)}", choices=Preparation(valid=0.3))
    train, valid = ({q.context for q in data.split(part).questions} for part in ("train", "valid"))
    assert len(train | valid) == 9
    assert len(valid) == 3
    assert not train & valid


def test_what_no_token_stands_for_is_refused():
    tokenizer = Tokenizer.words(["Who", "x"])
    with pytest.raises(DataError, match="leaves nothing of the answer"):
        AnswerSplit("train", tokenizer, [Question("1", "Who", "x   x", ((2, " "),))], WindowReading())
    with pytest.raises(DataError, match="leave no room"):
        WindowReading(window=8)
