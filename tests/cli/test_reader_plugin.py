"""A file format, a kind of label and an engine, each added by one file of a user's own, through the ordinary verbs."""

import json
import re
from pathlib import Path

import pytest

from kinfolk.cli.main import main

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SMALL = [word for size in ("n_layers=1", "d_model=16", "n_heads=2", "d_ff=16") for word in ("--set", size)]
QUIET = ["--quiet", "--no-tensorboard", "--json"]
SHARES = '''
"""Soft labels: how sure annotators were of each class, learnt by cross-entropy against their shares."""

from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from kinfolk.core.errors import DataError
from kinfolk.data.files.label_kinds import LabelKind
from kinfolk.data.files.lines import RowError
from kinfolk.objectives.objective import Loss, side_loss
from kinfolk.objectives.supervised import Labels
from kinfolk.objectives.tasks.classify import RowTask


class Shares(LabelKind, kind="shares"):
    def text(self, value, between):
        parts = dict(part.split("=") for part in str(value).split("|") if part.count("=") == 1)
        if abs(sum(map(float, parts.values())) - 1) > 1e-6:
            raise RowError("shares do not add up to 1", repr(value))
        return "|".join(f"{name}={float(parts[name])!r}" for name in sorted(parts))

    def names(self, text):
        return [part.split("=")[0] for part in text.split("|")]

    def value(self, text, numbers):
        shares = np.zeros(len(numbers), np.float32)
        for part in text.split("|"):
            name, share = part.split("=")
            shares[numbers[name]] = float(share)
        return shares


class SoftLabels(Labels, kind="soft-labels"):
    def loss(self, output, batch):
        return Loss(self.example_losses(output.logits, batch).sum(), torch.tensor(len(batch.labels)), side_loss(output))

    def example_losses(self, logits, batch):
        return F.cross_entropy(logits, batch.labels, reduction="none")

    def measure(self, output, batch):
        return {"shares": (self.example_losses(output.logits, batch).sum(), torch.tensor(len(batch.labels)))}


class Annotators(RowTask, kind="annotators"):
    labels: ClassVar = "shares"
    objectives: ClassVar = (SoftLabels,)

    def said(self, classes, logits, how):
        return {"shares": dict(zip(classes, logits.softmax(-1).tolist()))}
'''
MARKS = '''
"""Marked places of a text, as annotation tools write them: {"text": …, "marks": [[first, last, name], …]}."""

import dataclasses
import json
from typing import ClassVar

from kinfolk.core.errors import DataError
from kinfolk.data import Data
from kinfolk.data.splits.tagged import TaggedSplit
from kinfolk.data.splits.text_labels import TextLabels
from kinfolk.data.tokenizers.learn import make_tokenizer
from kinfolk.objectives.tasks.tag import Tagging, split_words


@dataclasses.dataclass
class Sentence:
    words: tuple
    tags: tuple


def read(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        row = json.loads(line)
        words = split_words(row["text"])
        tags = ["O"] * len(words.words)
        for first, last, name in row["marks"]:
            inside = [i for i, (a, b) in enumerate(words.places) if first <= a and b <= last]
            if not inside:
                raise DataError(f"{path}:{number}: no word from {first} to {last}")
            for i in inside:
                tags[i] = ("I-" if i > inside[0] else "B-") + name
        yield Sentence(words.words, tuple(tags))


class MarkedSplit(TaggedSplit):
    asks = "marks"


class Marks(TextLabels, kind="marks", per_token=True):
    def in_file(self, what):
        return "marks" in what.first_row

    def open(self, name, what, choices, valid):
        files = {"train": what.path, "valid": valid or what.path}
        parts = {part: list(read(file)) for part, file in files.items()}
        tags = tuple(sorted({tag for s in parts["train"] for tag in s.tags}))
        tokenizer = make_tokenizer(choices, ())
        splits = {part: MarkedSplit(part, tokenizer, mine, tags) for part, mine in parts.items()}
        return Data(name, "labelled", tokenizer, "marks", splits)


class Marking(Tagging, kind="marking"):
    labels: ClassVar = "marks"
'''
ENGINE = '''
"""The torch engine, counting its calls."""

from kinfolk.decoding.engines.torch_engine import TorchEngine

CALLS = {"read": 0, "advance": 0, "answer": 0}


class Counting(TorchEngine, kind="counting"):
    def read(self, *given):
        CALLS["read"] += 1
        return super().read(*given)

    def advance(self, *given):
        CALLS["advance"] += 1
        return super().advance(*given)

    def answer(self, batch):
        CALLS["answer"] += 1
        return super().answer(batch)
'''


def shown(name: str) -> str:
    """Return the file of this name that CONTRIBUTING.md shows."""
    found = re.search(rf"^```python\n# {re.escape(name)}\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("KINFOLK_CACHE", str(tmp_path / "cache"))
    return tmp_path


def kin(capsys, *argv, code=0):
    capsys.readouterr()
    assert main(list(map(str, argv))) == code, capsys.readouterr().err
    return capsys.readouterr()


def test_a_reader_in_one_file_is_read_by_every_verb(place, capsys):
    (place / "fwf.py").write_text(shown("fwf.py"))
    plugin = ["--plugin", place / "fwf.py"]
    rows = [f"{word:<6}a {word} thing, number {i}" for i in range(20) for word in ("good", "bad")]
    (place / "reviews.fwf").write_text("\n".join(["label text", *rows]) + "\n")
    table, data = place / "reviews.fwf", f"labelled:{place / 'reviews.fwf'}"
    kin(capsys, "prepare", table, "--out", place / "prepared", "--tokenizer", "byte", *plugin)
    manifest = json.loads((place / "prepared" / "manifest.json").read_text())
    assert sum(part["documents"] for part in manifest["splits"].values()) == 40
    short = ["--steps", 2, "--set", "training.length=32", *SMALL, *QUIET, *plugin]
    kin(capsys, "train", "gpt2", "--data", place / "prepared", "--out", place / "lm", *short)
    kin(capsys, "train", "bert", "--data", data, "--out", place / "judge", *short)
    kin(capsys, "finetune", place / "lm", "--train", table, "--steps", 1, "--out", place / "tuned", *QUIET[1:], *plugin)
    for run in ("judge", "tuned"):
        kin(capsys, "predict", place / run, "--input", table, "--out", place / "said.jsonl", *plugin)
        answers = [json.loads(line) for line in (place / "said.jsonl").read_text().splitlines()]
        assert [answer["line"] for answer in answers] == list(range(2, 42))
        assert set(answers[0]["probabilities"]) == {"good", "bad"}
    scores = json.loads(kin(capsys, "eval", place / "judge", "--data", table, "--json", *plugin).out)
    assert scores["measures"]["class"]["count"] == 40
    # a row that is too short is bad in its line, for every verb
    (place / "reviews.fwf").write_text("label text\ngood  fine\nbad\n")
    for words in (["prepare", table, "--out", place / "other"], ["predict", place / "judge", "--input", table]):
        assert f"{table}:3: too short: 3 characters" in kin(capsys, *words, *plugin, code=2).err


def test_a_kind_of_label_in_one_file(place, capsys):
    (place / "shares.py").write_text(SHARES)
    plugin = ["--plugin", place / "shares.py"]
    rows = [
        f"a {word} thing {i},{label}"
        for i in range(20)
        for word, label in (("fine", "no=0.25|yes=0.75"), ("bad", "no=1"))
    ]
    (place / "a.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    data = f"labelled:labels=shares:{place / 'a.csv'}"
    fast = ["--set", "training.optimiser.lr=0.01", "--set", "training.batch_size=16", "--tokenizer", "word"]
    words = ["train", "bert", "--data", data, "--steps", 60, "--out", place / "run", *fast, *SMALL, *QUIET, *plugin]
    valid = json.loads(kin(capsys, *words).out)["valid"]
    # the entropy of shares 1/4 and 3/4 is 0.562 nats, of certainty 0: a model cannot be better than their mean
    assert 0.2 < valid["shares"] < 0.45
    kin(capsys, "predict", place / "run", "--input", place / "a.csv", "--out", place / "said.jsonl", *plugin)
    first, second = [json.loads(line)["shares"] for line in (place / "said.jsonl").read_text().splitlines()][:2]
    assert first["yes"] == pytest.approx(0.75, abs=0.1)
    assert second["no"] > 0.9
    (place / "a.csv").write_text("text,label\na thing,no=0.5\n")
    words[words.index(place / "run")] = place / "other"
    assert "a.csv:2: shares do not add up to 1: 'no=0.5'" in kin(capsys, *words, code=2).err


def test_labels_inside_a_text_in_one_file(place, capsys):
    (place / "marks.py").write_text(MARKS)
    plugin = ["--plugin", place / "marks.py"]
    texts = [(f"so {name} went home", [[3, 3 + len(name), "PER"]]) for name in ("Ada", "Bob", "Cleo") for _ in range(8)]
    rows = [json.dumps({"text": text, "marks": marks}) for text, marks in texts]
    (place / "a.jsonl").write_text("\n".join(rows) + "\n")
    # in data/ there is no word of marks: the file is known by its first row, and the task by its labels
    fast = ["--steps", 60, "--set", "training.optimiser.lr=0.01", *SMALL, *QUIET, *plugin]
    words = ["train", "bert", "--data", f"labelled:{place / 'a.jsonl'}", "--out", place / "run", *fast]
    assert json.loads(kin(capsys, *words).out)["valid"]["accuracy"] == 1.0
    kin(capsys, "predict", place / "run", "--input", place / "a.jsonl", "--out", place / "said.jsonl", *plugin)
    first = json.loads((place / "said.jsonl").read_text().splitlines()[0])
    assert first["tags"] == ["O", "B-PER", "O", "O"]
    scores = json.loads(kin(capsys, "eval", place / "run", "--data", place / "a.jsonl", "--json", *plugin).out)
    assert scores["measures"]["accuracy"]["mean"] == 1.0
    (place / "a.jsonl").write_text(json.dumps({"text": "so Ada", "marks": [[0, 1, "PER"]]}) + "\n")
    words[words.index(place / "run")] = place / "other"
    assert "a.jsonl:1: no word from 0 to 1" in kin(capsys, *words, code=2).err


def test_an_engine_in_one_file_generates_and_predicts(place, capsys):
    (place / "counting.py").write_text(ENGINE)
    plugin = ["--plugin", place / "counting.py"]
    (place / "text.txt").write_text("some words to read, again and again.\n" * 60)
    (place / "a.csv").write_text("text,label\n" + "good one,good\nbad one,bad\n" * 10)
    short = ["--steps", 2, "--set", "training.length=16", *SMALL, *QUIET]
    kin(capsys, "train", "gpt2", "--data", place / "text.txt", "--out", place / "lm", *short)
    kin(capsys, "train", "bert", "--data", f"labelled:{place / 'a.csv'}", "--out", place / "judge", *short)
    generate = ["generate", place / "lm", "--prompt", "some", "--greedy", "--max-new", 5, "--json"]
    predict = ["predict", place / "judge", "--input", place / "a.csv", "--rows", 8]
    plain = [kin(capsys, *words).out for words in (generate, predict)]
    counted = [kin(capsys, *words, "--engine", "counting", *plugin).out for words in (generate, predict)]
    assert counted == plain
    from kinfolk.core.plugins import load_plugin

    assert load_plugin(place / "counting.py").CALLS == {"read": 1, "advance": 4, "answer": 3}
    assert (
        "engine: unknown 'count'; did you mean 'counting'?" in kin(capsys, *generate, "--engine", "count", code=2).err
    )
