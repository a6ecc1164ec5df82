"""Labelled data: files with a column of labels, what a batch of it looks like, and the smallest generated task."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kinfolk.core.errors import DataError
from kinfolk.data import Batches, Data, Preparation, Tokenizer, open_data, prepare
from kinfolk.data.files.label_kinds import label_kind
from kinfolk.data.files.lines import RowError
from kinfolk.data.splits.asking import inherited
from kinfolk.data.splits.labels import LabelledSplit
from kinfolk.data.splits.split import Indices, Split
from tests.data.made import contents

ROWS = [(f"text {'x' * (i % 7)} number {i}", f"say {i % 5}", ["bad", "good", "middling"][i % 3]) for i in range(60)]


def write(folder: Path, form: str, rows: Any = ROWS) -> Path:
    """Write rows of a text, a second text and a label in one of the formats."""
    path = folder / f"rows.{form}"
    names = ("text", "second", "label")
    if form == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    elif form == "tsv":
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in (names, *rows)))
    elif form == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="parquet needs kinfolk[data]")
        parquet = pytest.importorskip("pyarrow.parquet", reason="parquet needs kinfolk[data]")
        columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        parquet.write_table(pyarrow.table(columns), path)
    return path


def opened(path: Path, cache: Path, settings: str = "", **options: Any) -> Data:
    return open_data(f"labelled:{settings + ':' if settings else ''}{path}", cache=cache, **options)


def read(data: Data, name: str) -> list[tuple[Any, ...]]:
    split = data.split(name)
    assert isinstance(split, LabelledSplit)
    found = split.examples(np.arange(len(split)))
    return [(*(data.tokenizer.decode(ids.tolist()) for ids in row[:-1]), row[-1]) for row in found]


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "parquet"])
def test_every_row_keeps_its_label(tmp_path: Path, form: str) -> None:
    data = opened(write(tmp_path, form), tmp_path / "cache")
    assert data.kind == "labelled"
    rows = read(data, "train") + read(data, "valid")
    classes = data.split("train").classes  # type: ignore[attr-defined]
    assert classes == data.split("valid").classes == ("bad", "good", "middling")  # type: ignore[attr-defined]
    assert sorted((text, classes[label]) for text, label in rows) == sorted((text, label) for text, _, label in ROWS)
    assert data.split("train").n_bytes == sum(len(text) for text, _ in read(data, "train"))
    assert data.split("train").n_tokens == data.split("train").n_bytes + len(data.split("train"))


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_two_texts_share_a_label(tmp_path: Path, form: str) -> None:
    data = opened(write(tmp_path, form), tmp_path / "cache", "second=second")
    rows = read(data, "train") + read(data, "valid")
    classes = data.split("train").classes  # type: ignore[attr-defined]
    assert sorted((a, b, classes[label]) for a, b, label in rows) == sorted(ROWS)
    batch = Batches(data.split("train"), batch_size=5, length=64, shuffle=False).at(0)
    assert batch.source is not None
    assert batch.keep is not None
    first = data.tokenizer.decode(batch.tokens[0][batch.keep[0]][:-1].tolist())
    assert first in {a for a, _, _ in ROWS}


def test_whole_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    rows = [(f"t{i}", "s", i % 12) for i in range(60)]
    data = opened(write(tmp_path, "jsonl", rows), tmp_path / "cache")
    assert data.split("train").classes == tuple(map(str, range(12)))  # type: ignore[attr-defined]
    assert {int(text[1:]) % 12 == label for text, label in read(data, "train")} == {True}


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    rows = [(f"t{i}", "s", i / 7 - 3) for i in range(40)]
    data = opened(write(tmp_path, "csv", rows), tmp_path / "cache", "labels=number")
    assert data.split("train").classes == ()  # type: ignore[attr-defined]
    assert all(label == int(text[1:]) / 7 - 3 for text, label in read(data, "train"))
    labels = Batches(data.split("train"), batch_size=4, length=8).at(0).labels
    assert labels is not None
    assert (labels.shape, labels.dtype) == ((4,), torch.float32)


@pytest.mark.parametrize("form", ["jsonl", "tsv"])
def test_several_classes_may_hold(tmp_path: Path, form: str) -> None:
    holds = [["a"], ["a", "c"], [], ["b", "c"]]
    rows = [(f"t{i}", "s", holds[i % 4] if form == "jsonl" else "|".join(holds[i % 4])) for i in range(40)]
    data = opened(write(tmp_path, form, rows), tmp_path / "cache", "labels=classes")
    for text, label in read(data, "train"):
        assert [name for name, one in zip("abc", label, strict=True) if one] == holds[int(text[1:]) % 4]
    labels = Batches(data.split("train"), batch_size=4, length=8).at(0).labels
    assert labels is not None
    assert (labels.shape, labels.dtype) == ((4, 3), torch.float32)


def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    rows = [(f"{'word ' * 60}{i}", "s", i % 3) for i in range(7000)]
    path, choices = write(tmp_path, "jsonl", rows), Preparation(label_column="label")
    made = []
    for workers in (1, 3):
        manifest = prepare([path], tmp_path / str(workers), choices, workers=workers)
        made.append(contents(tmp_path / str(workers)))
    assert made[0] == made[1]
    assert len([name for name in made[0] if name.startswith("train-")]) > 2
    assert sum(manifest.splits["train"]["labels"].values()) == manifest.splits["train"]["documents"]


@pytest.mark.parametrize(
    ("row", "labels", "message"),
    [
        ({"text": "a"}, "class", r"rows.jsonl:2: key missing: no 'label'"),
        ({"text": "a", "label": None}, "class", r"rows.jsonl:2: no label"),
        ({"text": "a", "label": "  "}, "class", r"rows.jsonl:2: no label"),
        ({"text": "a", "label": {"x": 1}}, "class", r"rows.jsonl:2: no label: found dict"),
        ({"text": "a", "label": "y" * 300}, "class", r"rows.jsonl:2: label too long: 300 bytes"),
        ({"text": "", "label": "x"}, "class", r"rows.jsonl:2: empty text"),
        ({"text": 3, "label": "x"}, "class", r"rows.jsonl:2: not text: 'text' is int"),
        ({"text": "a", "label": "three"}, "number", r"rows.jsonl:2: not a number: the label is 'three'"),
        ({"text": "a", "label": "nan"}, "number", r"rows.jsonl:2: not a number"),
        ({"text": "a", "label": ["b|c"]}, "classes", r"rows.jsonl:2: label not allowed"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: dict[str, Any], labels: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    good = [{"text": f"t{i}", "label": 1} for i in range(9)]
    path.write_text("".join(json.dumps(one) + "\n" for one in (good[0], row, *good[1:])))
    choices = Preparation(label_column="label", labels=labels)
    with pytest.raises(DataError, match=message):
        prepare([path], tmp_path / "out", choices, workers=1)
    skipping = Preparation(label_column="label", labels=labels, on_bad="skip")
    manifest = prepare([path], tmp_path / "out", skipping, workers=1)
    assert manifest.bad_rows == 1
    assert sum(split["documents"] for split in manifest.splits.values()) == 9


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "a.txt"
    plain.write_text("some text\n")
    with pytest.raises(DataError, match=r"a.txt: plain text has no columns, so no labels"):
        opened(plain, tmp_path)
    table = write(tmp_path, "csv")
    with pytest.raises(DataError, match=r"rows.csv:1: column missing: no 'stars'.*--label-column"):
        opened(table, tmp_path, "label=stars")
    with pytest.raises(DataError, match=r"unknown setting 'lable=x'.*label"):
        opened(table, tmp_path, "lable=x")
    with pytest.raises(DataError, match="no such file or folder"):
        opened(tmp_path / "none.csv", tmp_path)
    with pytest.raises(DataError, match="labels: unknown choice 'clas'"):
        Preparation(label_column="label", labels="clas")
    with pytest.raises(DataError, match="label_column: is missing"):
        Preparation(second_column="b")
    with pytest.raises(DataError, match="pairs of a source and a target have no labels"):
        Preparation(label_column="label", pairs=True)


def test_a_column_of_anything_but_classes(tmp_path: Path) -> None:
    rows = [(f"t{i}", "s", f"id-{i}") for i in range(11_000)]
    with pytest.raises(DataError, match=r"'label' has more than 10,000 different labels, such as 'id-0'"):
        prepare([write(tmp_path, "tsv", rows)], tmp_path / "out", Preparation(label_column="label"), workers=1)


def test_labels_as_text() -> None:
    assert [label_kind("class").text(x, "bar") for x in (3, 3.0, 2.5, True, " a b ")] == [
        "3",
        "3",
        "2.5",
        "true",
        "a b",
    ]
    assert [label_kind("number").text(x, "bar") for x in ("1e3", 2, "-0.5")] == ["1000.0", "2.0", "-0.5"]
    assert [label_kind("classes").text(x, "bar") for x in (["b", "a", "b"], "b| a", "", None, [])] == [
        "a|b",
        "a|b",
        "",
        "",
        "",
    ]
    with pytest.raises(RowError):
        label_kind("class").text("\udc80", "bar")


def test_a_batch_is_sequences_with_their_ends_and_labels() -> None:
    data = open_data("parity:length=9")
    split = data.split("train")
    batches = Batches(split, batch_size=6, length=7, seed=3)
    batch = batches.at(2)
    assert batch.keep is not None
    assert batch.labels is not None
    assert batch.tokens.shape[1] <= 7
    assert (batch.tokens == data.tokenizer.pad).equal(~batch.keep)
    for tokens, keep, label in zip(batch.tokens, batch.keep, batch.labels, strict=True):
        row = tokens[keep].tolist()
        if row[-1] == data.tokenizer.eos:
            assert data.tokenizer.decode(row[:-1]).count("1") % 2 == label
    halves = [batches.at(2, rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([half.tokens for half in halves]), batch.tokens)
    assert torch.equal(torch.cat([half.labels for half in halves if half.labels is not None]), batch.labels)
    assert batches.n_cut > 0
    assert Batches(split, batch_size=6, length=10).n_cut == 0


class Pixels(Split):
    """A split of sequences that have no end."""

    kind, name, ends, classes = "labelled", "train", False, ("a", "b")
    tokenizer = Tokenizer.byte()
    n_tokens = n_bytes = 20

    def __len__(self) -> int:
        return 5

    def lengths(self, indices: Indices) -> Indices:
        return np.full(len(indices), 4)

    def examples(self, indices: Indices) -> list[tuple[Any, int]]:
        return [(np.arange(10, 14) + i, int(i) % 2) for i in indices]


def test_what_has_no_end_gets_none() -> None:
    batch = Batches(Pixels(), batch_size=2, length=4, shuffle=False).at(1)
    assert batch.tokens.tolist() == [[12, 13, 14, 15], [13, 14, 15, 16]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [0, 1]
    with pytest.raises(DataError, match="packing is for text"):
        Batches(Pixels(), batch_size=2, length=4, packed=True)


def test_parity_is_right_balanced_and_apart() -> None:
    data = open_data("parity:length=12,valid=500")
    seen = {}
    for name in ("train", "valid"):
        split = data.split(name)
        found = split.examples(np.arange(500))  # type: ignore[attr-defined]
        texts = [data.tokenizer.decode(ids.tolist()) for ids, _ in found]
        assert all(text.count("1") % 2 == label for text, (_, label) in zip(texts, found, strict=True))
        assert {len(text) for text in texts} >= set(range(5, 13))
        assert 0.4 < np.mean([label for _, label in found]) < 0.6
        assert split.lengths(np.arange(500)).tolist() == [len(text) for text in texts]  # type: ignore[attr-defined]
        seen[name] = set(texts)
    assert seen["train"].isdisjoint(seen["valid"])
    with pytest.raises(DataError, match="length must be from 1"):
        open_data("parity:length=0")
    with pytest.raises(DataError, match=r"unknown setting 'lenght'.*length"):
        open_data("parity:lenght=3")


def test_the_answer_stands_in_the_text() -> None:
    data = open_data("seek:length=20,letters=6")
    found, seen = 0, []
    for name in ("train", "valid"):
        split: Any = data.split(name)
        examples = split.examples(np.arange(400))
        texts = [tuple(data.tokenizer.decode(ids.tolist()) for ids in row[:2]) for row in examples]
        for (letter, text), (_, _, span) in zip(texts, examples, strict=True):
            match = re.search(f"{letter}([0-9]+)", text[text.find(letter) :]) if letter in text else None
            if match is None or text[text.find(letter) + 1 : text.find(letter) + 2] not in set("0123456789"):
                assert span.tolist() == [-1, -1]
            else:
                assert text[span[0] : span[1] + 1] == match[1]
                found += 1
        seen.append(set(texts))
        lengths = split.lengths(np.arange(400))
        assert [side.tolist() for side in lengths] == [[1] * 400, [len(text) for _, text in texts]]
    assert seen[0].isdisjoint(seen[1])
    assert 0.4 < found / 800 < 0.75
    batch = Batches(data.split("train"), batch_size=4, length=21).at(0)
    assert batch.labels is not None
    assert batch.labels.shape == (4, 2)


CONLLU = """\
1\tThe\t_\tDET\t_\t_\t2\t_\t_\t_
2\tcats\t_\tNOUN\t_\t_\t3\t_\t_\t_
3\tsat\t_\tVERB\t_\t_\t0\t_\t_\t_

1\tGo\t_\tVERB\t_\t_\t0\t_\t_\t_
2\t!\t_\tPUNCT\t_\t_\t1\t_\t_\t_
"""


def test_a_word_has_its_tag_at_its_first_token(tmp_path: Path) -> None:
    path = tmp_path / "t.conllu"
    path.write_text(CONLLU)
    data = open_data(f"tags:{path}", seed=1)
    assert data.kind == "labelled"
    read = {}
    for name in ("train", "valid"):
        split: Any = data.split(name)
        assert split.classes == ("DET", "NOUN", "PUNCT", "VERB")
        ((ids, tags),) = split.examples(np.arange(1))
        marked = [(data.tokenizer.decode([int(i)]), split.classes[t]) for i, t in zip(ids, tags, strict=True) if t >= 0]
        read[data.tokenizer.decode(ids.tolist())] = marked
    assert read == {
        "The cats sat": [("T", "DET"), (" ", "NOUN"), (" ", "VERB")],
        "Go !": [("G", "VERB"), (" ", "PUNCT")],
    }
    batch = Batches(data.split("train"), batch_size=1, length=10, shuffle=False).at(0)
    assert batch.targets is not None
    assert batch.targets.shape == batch.tokens.shape
    assert batch.labels is None
    assert (batch.targets >= 0).sum() == batch.n_scored
    with pytest.raises(DataError, match="no such file"):
        open_data(f"tags:{tmp_path / 'none.conllu'}")


def test_a_name_takes_over_what_it_does_not_say() -> None:
    own = "labelled:text=body,label=stars,valid=dev.csv:train.csv"
    assert inherited("labelled:test.csv", own) == "labelled:text=body,label=stars:test.csv"
    assert inherited("labelled:label=n:a.csv", own, window=64) == "labelled:window=64,text=body,label=n:a.csv"
    assert inherited("tags:a.conll", "tags:b.conll") == "tags:a.conll"
    assert inherited("other.txt", own) == "other.txt"


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "parquet"])
def test_validation_from_a_file_of_its_own(tmp_path: Path, form: str) -> None:
    (tmp_path / "dev").mkdir()
    train, cache = write(tmp_path, form), tmp_path / "cache"
    # of three classes only two are there, so their numbers must be those of the other file
    held = write(tmp_path / "dev", form, [row for row in ROWS[:12] if row[2] != "bad"])
    data = open_data(f"labelled:{train}", valid=held, cache=cache, tokenizer="bpe", vocab=300)
    assert len(data.split("train")) == 60
    assert len(data.split("valid")) == 8
    assert [row[0] for row in read(data, "valid")] == [row[0] for row in ROWS[:12] if row[2] != "bad"]
    assert data.split("valid").classes == ("bad", "good", "middling")  # type: ignore[attr-defined]
    assert [row[-1] for row in read(data, "valid")] == [1, 2] * 4
    assert data.fingerprint == opened(train, cache, f"valid={held}", tokenizer="bpe", vocab=300).fingerprint
    write(tmp_path / "dev", form, [*ROWS[:3], ("odd", "s", "goood")])
    line = {"jsonl": 4, "parquet": 4}.get(form, 5)
    with pytest.raises(DataError, match=rf"rows.{form}:{line}: the class 'goood' .*did you mean 'good'"):
        open_data(f"labelled:{train}", valid=held, cache=cache, tokenizer="bpe", vocab=300)


def test_texts_too_are_validated_on_another_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two three\n" * 50)
    (tmp_path / "b.txt").write_text("four five\n" * 9)
    data = open_data(tmp_path / "a.txt", valid=tmp_path / "b.txt", cache=tmp_path / "cache")
    assert (data.kind, data.split("train").n_bytes, data.split("valid").n_bytes) == ("text", 700, 90)
    with pytest.raises(DataError, match="has its own validation part"):
        open_data("copy", valid=tmp_path / "b.txt")
    with pytest.raises(DataError, match="no such file"):
        open_data(tmp_path / "a.txt", valid=tmp_path / "c.txt", cache=tmp_path / "cache")


def test_names_of_classes_may_have_commas_between(tmp_path: Path) -> None:
    path = tmp_path / "many.tsv"
    path.write_text("".join(f"text {i}\t{['2', '2,7', '', '7 , 10'][i % 4]}\tid{i}\n" for i in range(40)))
    data = opened(path, tmp_path / "cache", "text=1,label=2,labels=classes,between=comma")
    assert data.split("train").classes == ("2", "7", "10")  # type: ignore[attr-defined]
    holds = {row[0]: row[1].tolist() for part in ("train", "valid") for row in read(data, part)}
    assert [holds[f"text {i}"] for i in range(4)] == [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]]
    with pytest.raises(DataError, match="between: unknown choice 'tab'"):
        opened(path, tmp_path / "cache", "text=1,label=2,labels=classes,between=tab")
    assert "between" not in Preparation(label_column="label").plain()
