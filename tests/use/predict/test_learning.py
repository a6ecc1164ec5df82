"""What is taught from files of words and of questions is learnt, and told again of other files."""

import json
import random

import pytest

from kinfolk.data.files.reader import FileRow
from kinfolk.data.files.readers import read_rows
from kinfolk.use.predict.opening import open_run
from kinfolk.use.predict.predicting import predict
from tests.use.predict import made

PEOPLE, PLACES, YEARS = ("Ada", "Bob", "Cleo", "Dan"), ("Rome", "Oslo", "Kiel"), ("1801", "1902", "1843")
FAST = ("d_model=32", "d_ff=64", "training.optimiser.lr=0.003", "training.batch_size=16", "training.schedule.warmup=10")


def report(draw):
    """A sentence, and where in it each kind of question has its answer."""
    who, where, when = (draw.choice(some) for some in (PEOPLE, PLACES, YEARS))
    filler = " ".join(draw.choices(("then", "so", "it", "was"), k=draw.randint(0, 12)))
    return f"{filler} {who} went to {where} in {when} .".strip(), {"Who": who, "Where": where, "When": when, "Why": ""}


def squad(path, n, seed):
    draw, articles = random.Random(seed), []
    for i in range(n):
        context, right = report(draw)
        word = draw.choice(list(right))
        answers = [{"text": right[word], "answer_start": context.index(right[word])}] if right[word] else []
        asked = {"id": str(i), "question": f"{word} ?", "answers": answers, "is_impossible": not answers}
        articles.append({"paragraphs": [{"context": context, "qas": [asked]}]})
    path.write_text(json.dumps({"data": articles}))
    return path


@pytest.mark.slow
def test_answers_are_learnt_through_windows(tmp_path):
    data = squad(tmp_path / "train.json", 300, 0)
    run = made.train(
        tmp_path / "run",
        f"labelled:window=18,stride=6:{data}",
        *FAST,
        "n_layers=2",
        "model.dropout=0.0",
        "training.batch_size=32",
        "training.metric=answer-f1",
        steps=300,
        more=["--valid", str(squad(tmp_path / "valid.json", 60, 1)), "--tokenizer", "word"],
    )
    opened = open_run(run)
    assert not opened.always
    other = squad(tmp_path / "other.json", 60, 2)
    rows = json.loads(other.read_text())["data"]
    said = list(predict(opened, read_rows(str(other))))
    right = [[a["text"] for a in row["paragraphs"][0]["qas"][0]["answers"]] for row in rows]
    hits = [found["answer"] == (texts[0] if texts else "") for found, texts in zip(said, right, strict=True)]
    assert sum(hits) >= 54
    contexts = [row["paragraphs"][0]["context"] for row in rows]
    assert all(c[s["start"] : s["stop"]] == s["answer"] for c, s in zip(contexts, said, strict=True) if s["answer"])
    assert any(len(opened.tokenizer.encode(context)) > 18 for context in contexts)


@pytest.mark.slow
def test_tags_are_learnt_and_entities_found(tmp_path):
    draw, lines = random.Random(0), []
    for _ in range(200):
        words = report(draw)[0].split()
        tags = [{"went": "O"}.get(w, "B-PER" if w in PEOPLE else "B-LOC" if w in PLACES else "O") for w in words]
        lines.append("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)))
    path = tmp_path / "train.conll"
    path.write_text("\n".join(lines))
    run = made.train(
        tmp_path / "run", f"labelled:{path}", *FAST, "training.metric=entity-f1", steps=80, more=["--tokenizer", "word"]
    )
    (said,) = predict(open_run(run), [FileRow("x", 1, {"text": "so Cleo went to Oslo in 1902 ."})])
    assert [(e["label"], e["text"]) for e in said["entities"]] == [("PER", "Cleo"), ("LOC", "Oslo")]
    result = json.loads((run / "result.json").read_text())
    assert result["best"] == result["valid"]["entity-f1"] == pytest.approx(1.0)
