"""From a run and rows of a file to answers: in order, in chunks, and refused with their line where they are bad."""

import csv
import io
import json

import numpy as np
import pytest
import torch

from kinfolk.cli.main import main
from kinfolk.core.errors import DataError, SpecError
from kinfolk.core.rng import Rng
from kinfolk.data import Batches, open_data
from kinfolk.data.files.reader import FileRow
from kinfolk.data.files.readers import read_rows
from kinfolk.objectives.tasks.answering import How, PredictionCounts
from kinfolk.use.predict.opening import open_run
from kinfolk.use.predict.predicting import predict
from tests.use.predict import made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("predict")


@pytest.fixture(scope="module")
def classes(folder):
    return made.train(folder / "classes", f"labelled:{made.reviews(folder / 'c.jsonl')}")


@pytest.fixture(scope="module")
def tags(folder):
    return made.train(folder / "tags", f"labelled:{made.entities(folder / 't.conll')}")


@pytest.fixture(scope="module")
def answers(folder):
    return made.train(folder / "answers", f"labelled:window=64,stride=20:{made.questions(folder / 'q.json')}")


def rows(texts):
    return [FileRow("x", i, {"text": text}) for i, text in enumerate(texts, 1)]


def test_classes_are_what_evaluation_sees(folder, classes):
    opened = open_run(classes)
    assert (opened.task.labels, opened.classes) == ("class", ("no", "perhaps", "yes"))
    texts = [json.loads(line)["text"] for line in (folder / "c.jsonl").read_text().splitlines()]
    said = list(predict(opened, rows(texts), How(batch_size=4, chunk=7)))
    assert [row["line"] for row in said] == list(range(1, 31))
    data = open_data(f"labelled:{folder / 'c.jsonl'}", cache=folder / "cache")
    shares = {}
    for part in ("train", "valid"):
        batches = Batches(data.split(part), batch_size=8, length=opened.length, shuffle=False)
        for step in range(batches.steps_per_epoch):
            batch = batches.at(step)
            with torch.no_grad():
                found = opened.learner.run(opened.learner.prepare(batch, Rng(0)))[0].logits.softmax(-1)
            for tokens, keep, row in zip(batch.tokens, batch.keep, found, strict=True):
                shares[data.tokenizer.decode(tokens[keep][:-1])] = row
    for text, row in zip(texts, said, strict=True):
        torch.testing.assert_close(torch.tensor(list(row["probabilities"].values())), shares[text], atol=1e-5, rtol=0)
        assert row["label"] == opened.classes[int(shares[text].argmax())]
        assert row["score"] == max(row["probabilities"].values())


def test_neither_chunks_nor_batches_change_anything(classes):
    opened = open_run(classes)
    texts = ["a", "b" * 20, "cc d", "e" * 9, "f g", "h" * 30, "i"]
    whole = list(predict(opened, rows(texts), How(batch_size=7)))
    for how in (How(batch_size=1), How(batch_size=2, chunk=3), How(batch_size=3, chunk=1)):
        for a, b in zip(whole, predict(opened, iter(rows(texts)), how), strict=True):
            assert (a["line"], a["label"]) == (b["line"], b["label"])
            assert list(a["probabilities"].values()) == pytest.approx(list(b["probabilities"].values()), abs=1e-5)


def test_only_a_chunk_is_read_ahead(classes):
    taken = []

    def endless():
        for i in range(1000):
            taken.append(i)
            yield FileRow("x", i, {"text": f"text {i}"})

    said = predict(open_run(classes), endless(), How(chunk=5, top=1, echo=True))
    first = next(said)
    assert len(taken) == 5
    assert (first["text"], len(first["probabilities"])) == ("text 0", 1)


def test_bad_rows_are_refused_or_told(classes):
    opened = open_run(classes)
    bad = [
        FileRow("f.csv", 1, {"text": "good"}),
        FileRow("f.csv", 2, {"text": " "}),
        FileRow("f.csv", 3, {"texts": "x"}),
    ]
    bad += [
        DataError("f.csv:4: broken"),
        FileRow("f.csv", 5, {"text": None}),
        FileRow("f.csv", 6, {"text": "fine", "id": "z"}),
    ]
    with pytest.raises(DataError, match=r"f.csv:2: empty text"):
        list(predict(opened, bad))
    tally = PredictionCounts()
    said = list(predict(opened, bad, How(on_bad="skip"), tally))
    assert [(row["line"], row.get("id")) for row in said] == [(1, None), (6, "z")]
    assert tally.bad[1].startswith("f.csv:3: no 'text'; did you mean 'texts'?")
    assert (len(tally.bad), tally.rows) == (4, 2)
    assert "null, not text" in tally.bad[3]
    with pytest.raises(SpecError, match="on_bad: unknown 'ignore'"):
        How(on_bad="ignore")


def test_long_texts_are_cut_and_counted(classes):
    opened, tally = open_run(classes), PredictionCounts()
    list(predict(opened, rows(["x" * (opened.length - 1), "x" * opened.length]), None, tally))
    assert tally.cut == 1


def test_tags_of_words_and_entities_of_texts(tags):
    opened = open_run(tags)
    text = "The Ada, goes."
    (said,) = predict(opened, rows([text]))
    assert said["words"] == ["The", "Ada", ",", "goes", "."]
    assert len(said["tags"]) == len(said["scores"]) == 5
    for entity in said["entities"]:
        first, last = entity["words"]
        assert entity["text"] == " ".join(said["words"][first:last])
        assert text[entity["start"] : entity["stop"]].split()[0].startswith(said["words"][first])
    given = FileRow("x", 1, {"tokens": ["The", "Ada", ",", "goes", "."]})
    (same,) = predict(opened, [given])
    assert same["scores"] == pytest.approx(said["scores"], abs=1e-6)
    with pytest.raises(DataError, match="x:1: 'tokens' is str, not a list"):
        list(predict(opened, [FileRow("x", 1, {"tokens": "The"})]))


def test_long_sentences_are_read_in_parts(tags):
    opened, tally = open_run(tags), PredictionCounts()
    words = [f"w{i}" for i in range(opened.length)]
    (said,) = predict(opened, [FileRow("x", 1, {"tokens": words})], None, tally)
    assert len(said["tags"]) == len(words)
    assert tally.parted > 1
    room = opened.length - 1
    n_first = next(n for n in range(len(words)) if len(" ".join(words[: n + 1])) > room)
    (first,) = predict(opened, [FileRow("x", 1, {"tokens": words[:n_first]})])
    assert said["scores"][:n_first] == pytest.approx(first["scores"], abs=1e-5)


def test_answers_have_a_place_in_the_text(folder, answers, capsys):
    opened = open_run(answers)
    assert (opened.reading.window, opened.reading.stride, opened.always) == (64, 20, True)
    context = "In the year 1805 nobody built anything at all, and the river ran on as it always had, unbridged."
    asked = {"id": "q", "question": "When was it?", "context": context}
    (said,) = predict(opened, [FileRow("x", 3, asked)])
    assert said["answer"] == context[said["start"] : said["stop"]] != ""
    assert (said["id"], said["line"]) == ("q", 3)
    assert 0 < said["score"] <= 1
    (none,) = predict(opened, [FileRow("x", 3, asked)], How(margin=1e9))
    assert (none["answer"], none["start"]) == ("", None)
    out = folder / "said.csv"
    assert main(["predict", str(answers), "--input", str(folder / "q.json"), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 8
    table = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["id"] for row in table] == [f"q{i}" for i in range(8)]


def test_answers_are_those_of_evaluation(folder, answers, capsys):
    from kinfolk.data.files.questions import read_questions
    from kinfolk.objectives.measures.answers import exact, overlap

    assert main(["eval", str(answers), "--data", f"labelled:{folder / 'q.json'}", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["judgement"]
    asked = read_questions(folder / "q.json")
    said = list(predict(open_run(answers), read_rows(str(folder / "q.json"))))
    right = [[text for _, text in q.answers] for q in asked]
    both = [(exact(a["answer"], r), overlap(a["answer"], r)) for a, r in zip(said, right, strict=True)]
    assert figures["questions"] == 8
    assert (figures["answer_exact"], figures["answer_f1"]) == pytest.approx(tuple(np.mean(both, 0)))


def test_numbers_and_several_classes(folder):
    numbers = made.reviews(folder / "n.jsonl", label=lambda i: i / 10)
    value = open_run(made.train(folder / "numbers", f"labelled:labels=number:{numbers}"))
    (said,) = predict(value, rows(["it is good"]))
    assert set(said) == {"line", "value"}
    many = made.reviews(folder / "m.jsonl", label=lambda i: ["a", "b"][: i % 3])
    several = open_run(made.train(folder / "several", f"labelled:labels=classes:{many}"))
    assert several.task.labels == "classes"
    (low,) = predict(several, rows(["it is good"]), How(threshold=0.0))
    (high,) = predict(several, rows(["it is good"]), How(threshold=1.0))
    assert (sorted(low["labels"]), high["labels"]) == (["a", "b"], [])
    assert set(low["probabilities"]) == {"a", "b"}


def test_two_texts_have_two_columns(folder):
    path = folder / "pairs.csv"
    path.write_text("one,two,label\n" + "".join(f"a {i},b {i % 3},{'xy'[i % 2]}\n" for i in range(30)))
    run = made.train(folder / "pairs", f"labelled:text=one,second=two:{path}")
    opened = open_run(run)
    assert (opened.n_texts, opened.columns.text, opened.columns.second) == (2, "one", "two")
    said = list(predict(opened, read_rows(str(path))))
    assert len(said) == 30
    assert said[0]["label"] in ("x", "y")


def test_the_command_reads_streams_and_tables(folder, classes, capsys, monkeypatch):
    texts = b"it is good\nit is bad\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(texts))))
    assert main(["predict", str(classes), "--input", "-", "--echo"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == ["it is good", "it is bad"]
    table = folder / "table.tsv"
    table.write_text("1\tit is good\n2\tit is bad\n")
    out = folder / "out.csv"
    assert main(["predict", str(classes), "--input", str(table), "--text-column", "2", "--out", str(out)]) == 0
    found = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["label"] for row in found] == [line["label"] for line in lines]
    assert {"line", "score", "p(no)", "p(yes)", "p(perhaps)"} <= set(found[0])
    table.write_text("text\nfine\n\n")
    assert main(["predict", str(classes), "--input", str(table), "--out", str(folder / "no.jsonl")]) == 2
    assert "table.tsv:3: empty text" in capsys.readouterr().err
    assert not (folder / "no.jsonl").exists()
    assert main(["predict", str(classes), "--input", str(table), "--out", str(out), "--on-bad", "skip"]) == 0
    assert "1 bad rows were skipped, first:" in capsys.readouterr().err
    assert main(["predict", str(classes), "--input", str(table), "--out", str(folder / "a.xls")]) == 2
    assert "written as .jsonl or .csv" in capsys.readouterr().err


def test_a_run_that_writes_is_not_asked(folder, capsys):
    run = made.train(folder / "text", "copy:length=4", relative="vanilla")
    assert main(["predict", str(run), "--input", "-"]) == 2
    assert "judges nothing; kin generate lets a model write" in capsys.readouterr().err
