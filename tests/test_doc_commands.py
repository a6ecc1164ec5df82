"""Every `kin` command of every page runs, with its budget cut down, in a folder that has what the pages name."""

import io
import json
import shlex
import shutil
import sys

import pytest

from kinfolk.cli.main import main
from kinfolk.runs import chat_template, folder
from tests.test_docs import HOUSE, commands

PAGES = [
    "AGENTS",
    "comparing",
    "compression",
    "exchange",
    "finetuning",
    "knowledge",
    "objectives",
    "onnx",
]
PAGES += ["predicting", "pretraining", "reinforcement", "serving", "tasks"]
QUICK = ("finetuning", "predicting")
"""Pages of `make test`, the way to one's own labels; the others run in `make long`."""

ELSEWHERE = {
    "kin serve": "runs until it is stopped; tests/use/serve",
    "--suite": "makes its data for minutes; tests/contests/test_suite.py",
    "--tasks": "tasks of another package; tests/use/serve/test_harness.py",
    ".gguf": "tests/runs/test_gguf.py writes such files",
    "CartPole": "tests/contests/acting",
    "2x faster": "follows a stopwatch; tests/use/compress",
    " RUN": "no command but a shape of one",
    "fwf.py": "its plugin is tests/cli/test_reader_plugin.py",
    "ordinal.py": "its plugin is tests/cli/test_task_plugin.py",
    "my.py": "its plugin is tests/cli/test_plugin.py",
    "--knowledge names.tsv": "tests/train/test_entities.py has tables of entities",
    "--entities": "tests/train/test_entities.py has tables of entities",
    "tinyshakespeare": "a study of its own, with its report",
}
"""What does not run here, by a part of the command, and why or where else it does."""

SMALL = ["training.batch_size=4", "training.eval_batches=1"]
SETS = [word for pair in SMALL for word in ("--set", pair)]


def cut(words):
    """Return a command with one step, or with the smallest budget and one seed."""
    verb, words = words[1], list(words[1:])
    words = words[: words.index("&&")] if "&&" in words else words

    def put(option, value):
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words.extend((option, value))

    if verb == "train":
        put("--steps", "1")
        words += [*SETS, "--quiet", "--no-tensorboard"]
    elif verb == "finetune":
        words += ["--quiet", *([] if "--epochs" in words else ["--epochs", "1"])]
    elif verb in ("compare", "gate"):
        put("--budget", "1k-tokens" if "--env" not in words else "2k-tokens")
        put("--seeds", "1" if verb == "compare" else "2")
        put("--tune", "off")
        words += SETS if "--finetune" not in words and "--env" not in words else []
    elif verb == "compress" and "--recover" in words:
        put("--recover", "1")
    return words


def shown(page):
    for command in commands(_file(page)):
        # two commands side by side on one line
        for one in command.split("     "):
            if not any(mark in one for mark in ELSEWHERE):
                yield one.strip()


def train(*words, steps=1):
    assert main(["train", *words, "--steps", str(steps), "--quiet", "--no-tensorboard", *SETS]) == 0


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the files and runs that the pages name."""
    path = tmp_path_factory.mktemp("desk")
    text = "The quick brown fox jumps over the lazy dog, and then the fence. Nothing else happened.\n" * 150
    for name in (
        "notes.txt",
        "my.txt",
        "my-texts/a.txt",
        "my-texts/b.txt",
        "news.txt",
        "texts.txt",
        "wikitext-2/valid.txt",
    ):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text + name if name.startswith("my-texts") else text)
    table = "text,label\n" + "".join(f"a {w} film {n},{w}\n" for n in range(20) for w in ("good", "bad"))
    for name in ("a.csv", "b.csv", "c.csv", "new.csv", "test.csv", "rows.csv", "reviews.csv", "trec.csv"):
        (path / name).write_text(table)
    for n in range(40):
        (path / "my" / "folder" / ("pos", "neg")[n % 2]).mkdir(parents=True, exist_ok=True)
        (path / "my" / "folder" / ("pos", "neg")[n % 2] / f"{n}.txt").write_text(f"A film {n}.\n")
    (path / "facts.tsv").write_text("fox\tis\tanimal\nfilm\tis\tart\n")
    tagged = "EU B-ORG\nrejects O\nGermany B-LOC\n\n" * 40
    (path / "entities.conll").write_text(tagged)
    context = "Ada wrote the first program. Alan wrote about machines."
    asked = {"question": "who wrote?", "answers": [{"text": "Ada", "answer_start": 0}]}
    articles = [{"paragraphs": [{"context": f"{context} {n}", "qas": [asked | {"id": f"{n}"}]}]} for n in range(40)]
    (path / "dev.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    (path / "data").mkdir()
    for name, line in (("x.en", "a cat {}\n"), ("x.de", "eine Katze {}\n")):
        (path / "data" / name).write_text("".join(line.format(n) for n in range(300)))
    return path


@pytest.fixture(scope="module")
def runs(desk):
    """Runs by the names that the pages use, each of one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(desk)
        train("gpt2", "--data", "notes.txt", "--out", "runs/a")
        train("bert", "--data", "notes.txt", "--out", "runs/bert")
        train("bert", "--data", "labelled:a.csv", "--out", "runs/reviews")
        train("bert", "--data", "labelled:entities.conll", "--out", "runs/entities")
        train("bert", "--data", "labelled:labels=span:dev.json", "--out", "runs/answers")
        train("t5", "--data", "notes.txt", "--out", "runs/t5")
        assert main(["prepare", "data/x.en", "data/x.de", "--pairs", "--out", "data/en-de"]) == 0
        kept = ["--set", "training.keep_last=5", "--set", "training.save_every=1"]
        train("vanilla", "--data", "data/en-de", "--out", "runs/mt", *kept, steps=5)
        assert main(["export", "runs/bert", "--to", "hf", "--out", "all-MiniLM-L6-v2"]) == 0
        assert main(["export", "runs/reviews", "--to", "hf", "--out", "downloaded"]) == 0
        template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
        folder.add(desk / "runs" / "a", chat_template.FILE, lambda file: file.write_text(template))
        for name, source in (("b", "a"), ("minilm", "bert"), ("summaries", "mt")):
            shutil.copytree(f"runs/{source}", f"runs/{name}")
    return desk


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, marks=[pytest.mark.long] * (page not in QUICK)) for page in PAGES])
def test_the_commands_of_a_page_run(page, runs, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    here = tmp_path / "desk"
    shutil.copytree(runs, here)
    monkeypatch.chdir(here)
    wrong = []
    lines = list(shown(page))
    assert lines
    for number, line in enumerate(lines):
        words = cut(shlex.split(line, comments=True))
        if words[0] in ("train", "compare", "gate") and "--out" not in words:
            words += ["--out", f"runs/new-{number}"]
        for i, word in enumerate(words):
            # a page may write one folder in several ways
            if word == "--out" and (here / words[i + 1]).is_dir():
                shutil.rmtree(here / words[i + 1])
        monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
        code = main(words)
        error = capsys.readouterr().err.strip().splitlines()[-1:]
        # a gate may say worse or not decided
        if code not in ((0, 1, 3) if words[0] == "gate" else (0,)):
            wrong.append(f"{line}\n    {words}\n    {error}")
    assert wrong == [], "\n".join(wrong)


def test_what_does_not_run_here_is_still_on_a_page():
    every = "\n".join(command for page in (*PAGES, "CONTRIBUTING") for command in commands(_file(page)))
    assert [mark for mark in ELSEWHERE if mark not in every] == []


def _file(page):
    return HOUSE / f"{page}.md" if (HOUSE / f"{page}.md").exists() else HOUSE / "docs" / f"{page}.md"
