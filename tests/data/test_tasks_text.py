"""Bytes: passages of the standard library, and labelled texts and pairs of one's own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import Batches, Data, open_data
from kinfolk.data.files.names import split_path
from kinfolk.data.generated.documents import ByteDocument, library, part


def texts(data: Data, name: str, n: int | None = None) -> list[tuple[str, ...]]:
    split: Any = data.split(name)
    found = split.examples(np.arange(len(split) if n is None else n))
    return [(*(data.tokenizer.decode(side) for side in sides), split.classes[label]) for *sides, label in found]


def homes(passage: str) -> set[str]:
    """Return the modules of the standard library that hold a passage."""
    # a cut in the middle of a letter is not a text
    found = passage.strip("\ufffd").encode()
    return {document.name for document in library() if found in document.body}


@pytest.mark.parametrize("name", ["train", "valid"])
def test_a_passage_is_from_the_package_it_is_said_to_be_from(name: str) -> None:
    data = open_data("text:length=400,families=5")
    for passage, family in texts(data, name, 25):
        assert any(home.startswith(f"{family}/") for home in homes(passage))
        assert len(passage.encode()) <= 400


@pytest.mark.parametrize("name", ["train", "valid"])
def test_passages_are_from_one_module_or_from_two(name: str) -> None:
    for a, b, label in texts(open_data("retrieval:length=600"), name, 25):
        assert bool(homes(a) & homes(b)) == (label == "same")
        assert a != b
    labels = [label for *_, label in texts(open_data("retrieval:length=600"), name, 400)]
    assert labels.count("same") / 400 == pytest.approx(0.5, abs=0.1)


def test_documentation_and_code() -> None:
    document = ByteDocument(
        "m.py",
        "",
        b'"""What it is."""\nx = """data"""\n\ndef f():\n    r"""Do it.\n\n    Well.\n    """\n    return 1\n',
    )
    assert document.prose == b"What it is.\nDo it.\n\n    Well.\n    "
    assert document.code == b'\nx = """data"""\n\ndef f():\n\n    return 1\n'
    for passage, label in texts(open_data("prose:length=1000"), "train", 30):
        assert ('"""' in passage) <= (label == "code")
    # code is denser in brackets than prose
    counts = {"code": 0, "prose": 0}
    for passage, label in texts(open_data("prose:length=1000"), "valid", 200):
        counts[label] += passage.count("(")
    assert counts["code"] > 1.2 * counts["prose"]


def test_documents_of_valid_are_never_in_train() -> None:
    documents = library()
    valid, train = (part(documents, valid=held) for held in (True, False))
    assert {d.name for d in valid}.isdisjoint(d.name for d in train)
    assert len(valid) + len(train) == len(documents)
    assert len(valid) == len(documents) // 5
    assert len(part(documents[:3], valid=True)) == 1
    # and therefore no passage is, but for what stands in several documents
    data = open_data("text:length=300,families=4")
    families = data.split("valid").classes  # type: ignore[attr-defined]
    held = {d.name for f in families for d in part([d for d in documents if d.family == f], valid=True)}
    assert all(homes(passage) & held for passage, _ in texts(data, "valid", 30))
    assert not [passage for passage, _ in texts(data, "train", 30) if homes(passage) <= held]


def folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_a_folder_of_labelled_texts(tmp_path: Path) -> None:
    names = ("bad", "good")
    folder(tmp_path, {f"{label}/{i}.txt": f"{label} film número {i}" for label in names for i in range(60)})
    folder(tmp_path, {f"good/again-{i}.txt": f"good film número {i}" for i in range(60)})
    data = open_data(f"text:length=10:{tmp_path}")
    train, valid = (texts(data, name) for name in ("train", "valid"))
    assert data.kind == "labelled"
    assert len(train) + len(valid) == 180
    assert 4 < len(valid) < 40
    assert all(len(text.encode()) <= 10 and text.startswith(label) for text, label in train + valid)
    # the same text twice is one document
    whole = open_data(f"text:{tmp_path}")
    assert {t for t, _ in texts(whole, "train")}.isdisjoint(t for t, _ in texts(whole, "valid"))
    batch = Batches(data.split("train"), batch_size=4).at(0)
    assert batch.labels is not None
    assert batch.tokens.shape == (4, 11)
    assert data.fingerprint != whole.fingerprint
    assert data.fingerprint == open_data(f"text:length=10:{tmp_path}").fingerprint
    (tmp_path / "bad" / "3.txt").write_text("bad film numero 3")
    assert data.fingerprint != open_data(f"text:length=10:{tmp_path}").fingerprint


def test_parts_that_were_parted_already(tmp_path: Path) -> None:
    folder(
        tmp_path, {f"{part}/{x}/{i}.txt": f"{part} {x} {i}" for part in ("train", "test") for x in "np" for i in "12"}
    )
    folder(tmp_path, {"train/unsup/1.txt": "neither"})
    data = open_data(f"text:{tmp_path}")
    assert {text for text, _ in texts(data, "train")} == {"train n 1", "train n 2", "train p 1", "train p 2"}
    assert {text for text, _ in texts(data, "valid")} == {"test n 1", "test n 2", "test p 1", "test p 2"}


def test_pairs_of_a_table_are_parted_by_their_documents(tmp_path: Path) -> None:
    table = tmp_path / "pairs.tsv"
    # chains of four documents, each with its neighbour
    rows = [f"{j % 2}\ta{i}.{j}\ta{i}.{j + 1}" for i in range(80) for j in range(3)]
    table.write_text("\n".join(rows) + "\n")
    data = open_data(f"retrieval:{table}")
    train, valid = (texts(data, name) for name in ("train", "valid"))
    assert len(train) + len(valid) == 240
    assert len(valid) > 5
    assert {x for row in train for x in row[:2]}.isdisjoint(x for row in valid for x in row[:2])
    batch = Batches(data.split("train"), batch_size=4).at(0)
    assert batch.source is not None
    assert batch.labels is not None


def test_other_tables(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(
        "\n".join(json.dumps({"label": i % 2, "a": f"é{i}", "b": "x"}) for i in range(4))
    )
    (tmp_path / "valid.jsonl").write_text(
        "\n".join(json.dumps({"label": i % 2, "a": f"v{i}", "b": "y"}) for i in range(2))
    )
    data = open_data(f"retrieval:{tmp_path}")
    assert texts(data, "train") == [(f"é{i}", "x", str(i % 2)) for i in range(4)]
    assert texts(data, "valid") == [("v0", "y", "0"), ("v1", "y", "1")]
    named = tmp_path / "named.tsv"
    named.write_text("\n".join(f"{i % 2}\tp{i}\tq{i}\tthe same text\tanother" for i in range(100)))
    assert len(texts(open_data(f"retrieval:{named}"), "valid")) > 2
    plain = tmp_path / "plain.csv"
    plain.write_text("\n".join(f'{i % 2},"text, {i}"' for i in range(100)))
    assert ("text, 7", "1") in texts(open_data(f"text:{plain}"), "train")


@pytest.mark.parametrize(
    ("write", "name", "message"),
    [
        ({}, "text:{}/nothing", "no such file or folder"),
        ({"one/a.txt": "x"}, "text:{}", "a folder of files for each class, found 1"),
        ({"p.tsv": "1\ta\n"}, "retrieval:{}/p.tsv", "row 1 has 2 columns; expected a label and 2 texts"),
        ({"p.jsonl": '{"a": 1}\n'}, "retrieval:{}/p.jsonl", "p.jsonl:1: not a line like"),
        ({"p.tsv": "1\ta\tb\n"}, "retrieval:{}/p.tsv", "no example for"),
        ({"x/a": "1", "y/b": "2"}, "retrieval:{}", "pairs are read from a table"),
        ({"train.tsv": "1\ta\n", "test.tsv": "1\tb\n"}, "text:{}", "classes of train are"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, write: dict[str, str], name: str, message: str) -> None:
    folder(tmp_path, write)
    with pytest.raises(DataError, match=message):
        open_data(name.format(tmp_path))


def test_names_with_paths() -> None:
    assert split_path("text") == ("text", "")
    assert split_path("text:length=4,families=2") == ("text:length=4,families=2", "")
    assert split_path("text:length=4:a/b=c:d") == ("text:length=4", "a/b=c:d")
    assert split_path("text:a/b") == ("text", "a/b")
    assert split_path("text:folder") == ("text", "folder")
