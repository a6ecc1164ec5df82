"""Data files as the world has them: other encodings, surplus fields, broken quotes, cut and binary bytes."""

import gzip
import json
import random
import tempfile
from pathlib import Path

from kinfolk.data import open_data
from kinfolk.data.batches.batches import Batches
from kinfolk.data.files.readers import read_rows

WORDS = [
    "a",
    "good",
    "bad",
    "so it is",
    "naïve",
    "日本",
    "😀",
    "",
    " ",
    "1",
    "-3.5",
    "nan",
    "1e999",
    "|",
    "a|b",
    '"',
    "'",
]
WORDS += [
    "\t",
    ",",
    ";",
    "\\",
    "\x00",
    "\u2028",
    "\ufeff",
    "x" * 3000,
    "null",
    "true",
    "O",
    "B-PER",
    "I-LOC",
    "#",
    "//",
]
ENDINGS = [".csv", ".tsv", ".jsonl", ".ndjson", ".txt", ".json", ".conll", ".conllu", ".parquet", ".npz", ".md", ""]
ENCODINGS = ["utf-8", "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-32", "cp1252"]
FORMS = [
    "",
    "",
    "labelled:",
    "labelled:text=text,label=label:",
    "labelled:text=1,label=2:",
    "pairs:source=text,target=label:",
]
FORMS += ["corpus:text=text:", "tags:", "labelled:window=32,stride=8:", "images:", "labelled:label=nothing:"]


def rows(rng: random.Random) -> list[list[str]]:
    """Return fields of rows, now and then one too few or one too many."""
    found = [["text", "label"]] if rng.random() < 0.8 else []
    for _ in range(rng.choice([0, 1, 3, 12, 40])):
        row = [rng.choice(WORDS) + rng.choice(["", " x"]), rng.choice(["yes", "no", rng.choice(WORDS)])]
        found.append(row)
    if found and rng.random() < 0.3:
        row = rng.choice(found[:2])
        row.append("surplus") if rng.random() < 0.6 else row.pop()
    return found


def text_of(rng: random.Random, ending: str) -> str:
    """Write rows in a format, or in another than the name says."""
    fields, form = rows(rng), ending if rng.random() < 0.9 else rng.choice(ENDINGS)
    end = rng.choice(["\n", "\n", "\n", "\r\n", "\r"])
    if form in (".jsonl", ".ndjson"):
        keys = rng.choice([["text", "label"], ["text", "label"], ["tokens", "tags"], ["text", "text"]])
        pairs = [dict(zip(keys, row, strict=False)) for row in fields]
        if "tokens" in keys:
            pairs = [{key: value.split() for key, value in pair.items()} for pair in pairs]
        return end.join(
            json.dumps(pair) if rng.random() < 0.95 else rng.choice(["[]", "{", "3", '{"text": 3}']) for pair in pairs
        )
    if form == ".json":
        ask = {
            "id": "1",
            "question": "why",
            "answers": [{"text": "x", "answer_start": rng.choice([0, -1, 99, "0", None])}],
        }
        found = {"data": [{"paragraphs": [{"context": rng.choice(WORDS), "qas": [ask]}]}]}
        return json.dumps(
            rng.choice([found, found, [], {}, {"data": 3}, {"data": [3]}, {"data": [{"paragraphs": [{}]}]}])
        )
    between = {".csv": ",", ".conll": " "}.get(form, "\t")
    quoted = form == ".csv" and rng.random() < 0.7
    lines = [between.join('"' + one.replace('"', '""') + '"' if quoted else one for one in row) for row in fields]
    return end.join(lines) + rng.choice([end, "", end * 3])


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """Cut, flip or insert some bytes, or leave them alone."""
    kind = rng.choice(["none", "none", "none", "cut", "flip", "insert", "random", "gzip", "half gzip"])
    if kind == "cut":
        return raw[: rng.randrange(len(raw) + 1)]
    if kind in ("flip", "insert") and raw:
        at = rng.randrange(len(raw))
        new = bytes(rng.choices(range(256), k=rng.choice([1, 4])))
        return raw[:at] + new + raw[at + (len(new) if kind == "flip" else 0) :]
    if kind == "random":
        return rng.choice([b"PAR1", b"\x1f\x8b", b"\x89PNG", b"PK\x03\x04", b""]) + rng.randbytes(
            rng.choice([0, 10, 2000])
        )
    if kind.endswith("gzip"):
        packed = gzip.compress(raw)
        return packed if kind == "gzip" else packed[: len(packed) // 2]
    return raw


def file_case(rng: random.Random) -> None:
    """Write a file, and read it as training or as prediction would."""
    ending = rng.choice(ENDINGS)
    raw = damaged(rng, text_of(rng, ending).encode(rng.choice(ENCODINGS), errors="replace"))
    if raw[:2] == b"\x1f\x8b" and rng.random() < 0.7:
        ending += ".gz"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{ending}"
        path.write_bytes(raw)
        if rng.random() < 0.3:
            for row in read_rows(str(path), header=rng.random() < 0.8):
                assert row is not None
            return
        data = open_data(f"{rng.choice(FORMS)}{path}", cache=Path(folder) / "cache", workers=1)
        if data.kind not in ("text", "labelled", "pairs"):
            return
        for name in ("train", "valid"):
            assert len(data.split(name))
        Batches(data.split("train"), batch_size=2, length=16).at(1)
