"""Every task from its own kind of file, and what is clear without being said."""

import json

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.errors import SpecError
from kinfolk.data import Tokenizer
from kinfolk.objectives.tasks.registry import named
from kinfolk.train.finetune.run import prepare
from kinfolk.train.finetune.source import open_source
from kinfolk.train.finetune.task import choose
from kinfolk.train.parallel import Team
from kinfolk.train.run import make_job
from tests.train.finetune.conftest import BAD, FILL, GOOD, make_run, rows, write_csv

SHORT = ("--steps", "2", "--batch-size", "4", "--quiet", "--no-tensorboard", "--json")


def tune(what, train, out, capsys, *more):
    assert main(["finetune", str(what), "--train", str(train), "--out", str(out), *SHORT, *more]) == 0
    return json.loads(capsys.readouterr().out)


def write_rows(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return path


def test_pairs_numbers_and_several_classes(run, tmp_path, capsys):
    texts = rows(24)
    pairs = [{"text": r["text"], "hypothesis": texts[i - 1]["text"], "label": r["label"]} for i, r in enumerate(texts)]
    found = tune(run, write_rows(tmp_path / "p.jsonl", pairs), tmp_path / "p", capsys)
    assert (found["task"], "accuracy" in found["valid"]) == ("pairs", True)
    numbers = [{"sentence": r["text"], "score": i / 4} for i, r in enumerate(texts)]
    found = tune(run, write_csv(tmp_path / "n.csv", numbers), tmp_path / "n", capsys)
    assert (found["task"], "pearson" in found["valid"]) == ("regress", True)
    many = [{"text": r["text"], "labels": ["x", "y"] if i % 2 else ["z"]} for i, r in enumerate(texts)]
    found = tune(run, write_rows(tmp_path / "m.jsonl", many), tmp_path / "m", capsys, "--tactic", "balanced")
    assert (found["task"], "micro-f1" in found["valid"]) == ("multi-label", True)
    weights = open_source(tmp_path / "m").recipe.objective.weights
    assert weights == pytest.approx((1, 1, 1), rel=0.3)
    assert main(["eval", str(tmp_path / "m"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["judgement"]["classes"][0]["name"] == "x"


def test_tags_of_words(run, tmp_path, capsys):
    words = [(w, "B-WORD" if w in (*GOOD, *BAD) else "O") for row in rows(16) for w in [*row["text"].split(), ""]]
    file = tmp_path / "a.conll"
    file.write_text("".join(f"{w}\t{tag}\n" if w else "\n" for w, tag in words), encoding="utf-8")
    found = tune(run, file, tmp_path / "out", capsys)
    assert found["task"] == "tag"
    assert "entity-f1" in found["valid"]


@pytest.mark.parametrize("name", ["bert", "longformer"])
@pytest.mark.parametrize("task", ["classify", "pairs", "multi-label", "regress", "tag"])
def test_a_pretrained_encoder_reads_what_its_tokenizer_writes(name, task, words, tmp_path):
    """The opening and closing tokens it was pretrained with, whatever is asked, where its makers put them."""
    marks = [("[CLS]", words.cls), ("[SEP]", words.sep), ("[END]", words.eos)]
    words.inner.post_processor = TemplateProcessing("[CLS] $A [END]", "[CLS] $A [SEP] $B:1 [END]:1", marks)
    source = open_source(make_run(tmp_path / "run", name, words))
    texts = [row["text"] for row in rows(8)]
    file = tmp_path / ("a.conll" if task == "tag" else "a.jsonl")
    if task == "tag":
        file.write_text("\n\n".join("\n".join(f"{w}\tO" for w in text.split()) for text in texts))
    else:
        labels = {"regress": [0.5, 1.5], "multi-label": [["x", "y"], ["z"]]}.get(task, ["no", "yes"])
        write_rows(file, [{"text": t, "second": texts[0], "label": labels[i % 2]} for i, t in enumerate(texts)])
    made = prepare(source, named(task, second="second" if task == "pairs" else ""), (file, file))
    batch, _ = make_job(made.recipe, made.data, 0).read(1, Team())
    second = [texts[0]] if task == "pairs" else []
    expected = {tuple(words.inner.encode(text, *second).ids) for text in texts}
    read = [tuple(row[keep].tolist()) for row, keep in zip(batch.tokens, batch.keep, strict=True)]
    assert set(read) == expected


def test_answers_in_contexts(run, tmp_path, capsys):
    context, found = "the film was good and it seemed lovely", []
    for i, word in enumerate((*GOOD[:2], "film") * 4):
        start = max(context.find(word), 0)
        answers = [{"text": word, "answer_start": start}] if word in context else []
        found.append({"id": str(i), "question": "the plot was", "answers": answers, "is_impossible": not answers})
    articles = [
        {"title": str(i), "paragraphs": [{"context": f"{context} {FILL[i]}", "qas": found[i::4]}]} for i in range(4)
    ]
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"version": "2.0", "data": articles}), encoding="utf-8")
    result = tune(run, file, tmp_path / "out", capsys)
    assert result["task"] == "answer"
    assert "answer-f1" in result["valid"]


@pytest.mark.filterwarnings("ignore::kinfolk.data.tokenizers.unknown.UnknownTokens")
def test_text_and_pairs_are_gone_on_with(words, tmp_path, capsys):
    gpt = make_run(tmp_path / "gpt", "gpt2", words)
    text = tmp_path / "a.txt"
    text.write_text("\n".join(row["text"] for row in rows(60)), encoding="utf-8")
    found = tune(gpt, text, tmp_path / "t", capsys, "--length", "16", "--set", "training.length=16")
    assert (found["task"], "next-token" in found["valid"], found["fresh"]) == ("lm", True, [])
    both = [{"source": row["text"], "target": row["label"]} for row in rows(24)]
    found = tune(gpt, write_csv(tmp_path / "p.csv", both), tmp_path / "p", capsys)
    assert (found["task"], "target-token" in found["valid"]) == ("seq2seq", True)
    vanilla = make_run(tmp_path / "vanilla", "vanilla", words)
    found = tune(vanilla, tmp_path / "p.csv", tmp_path / "v", capsys, "--metric", "rouge-l", "--written", "2")
    assert (found["task"], found["best"]) == ("seq2seq", found["valid"]["rouge-l"])
    bert = open_source(make_run(tmp_path / "encoder", "bert", words))
    with pytest.raises(SpecError, match="an encoder writes nothing"):
        prepare(bert, named("seq2seq"), (tmp_path / "p.csv", None))


def test_pictures(tmp_path, capsys):
    image = pytest.importorskip("PIL.Image", reason="reads and writes picture files")
    for name, value in (("dark", 30), ("light", 220)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(6):
            grey = np.full((8, 8), value + i, np.uint8)
            image.fromarray(grey).save(tmp_path / "pictures" / name / f"{i}.png")
    vit = make_run(tmp_path / "vit", "vit", Tokenizer.byte(), image_width=8, channels=1, max_len=64, patch=4)
    found = tune(vit, tmp_path / "pictures", tmp_path / "out", capsys)
    assert (found["task"], "accuracy" in found["valid"]) == ("image", True)


def test_a_downloaded_folder_is_tuned_as_a_run_is(run, words, files, tmp_path, capsys):
    source = open_source(run)
    recipe = source.recipe
    model = kf.load(run)
    kf.to_hf(model, tmp_path / "hf", tokenizer=run / "tokenizer.json")
    found = tune(tmp_path / "hf", files[0], tmp_path / "mine", capsys)
    assert found["task"] == "classify"
    opened = open_source(tmp_path / "hf")
    assert opened.recipe.model == recipe.model
    assert opened.tokenizer.encode("the film") == words.encode("the film")


def test_what_a_file_shows_is_not_asked_for(tmp_path):
    quora = write_csv(tmp_path / "q.csv", [{"question1": "a b", "question2": "c", "label": 1}] * 3)
    assert choose("auto", quora) == named("pairs", text="question1", second="question2", label="label")
    stars = write_csv(tmp_path / "s.tsv", [{"review": "a", "stars": 3}])
    (tmp_path / "s.tsv").write_text("review\tstars\na\t3\nb\t4\n", encoding="utf-8")
    assert choose("auto", stars) == named("classify", text="review", label="stars")
    assert choose("regress", stars).kind == "regress"
    odd = write_csv(tmp_path / "o.csv", [{"x": "a", "y": "b"}])
    with pytest.raises(SpecError, match=r"not clear from its columns \('x', 'y'; the first row names them\)"):
        choose("auto", odd)
    with pytest.raises(SpecError, match="did you mean 'classify'"):
        choose("clasify", odd)
    bare = tmp_path / "bare.tsv"
    bare.write_text("a b c\t0\nd e f\t1\n", encoding="utf-8")
    assert choose("auto", bare, "1", "", "2") == named("classify", text="1", label="2")
    assert set(FILL).isdisjoint(GOOD)
