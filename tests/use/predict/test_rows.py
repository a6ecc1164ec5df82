"""Rows of every form of file, and the line of what is bad in them."""

import gzip
import json

import pytest

from kinfolk.core.errors import DataError
from kinfolk.data.files.reader import FileRow
from kinfolk.data.files.readers import form_of, read_rows
from kinfolk.objectives.tasks.tag import split_words


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def values(path, form="", **options):
    return [
        (row.line, row.values) if isinstance(row, FileRow) else str(row) for row in read_rows(path, form, **options)
    ]


def test_text_is_a_row_a_line(tmp_path):
    found = values(write(tmp_path / "a.txt", b"one\r\ntwo\n\nbad \xff\nlast"))
    assert found[:3] == [(1, {"text": "one"}), (2, {"text": "two"}), (3, {"text": ""})]
    assert found[3].endswith("a.txt:4: not valid UTF-8: byte 0xff at column 5")
    assert found[4] == (5, {"text": "last"})
    with gzip.open(tmp_path / "b.txt.gz", "wb") as file:
        file.write(b"one\ntwo")
    assert values(str(tmp_path / "b.txt.gz")) == [(1, {"text": "one"}), (2, {"text": "two"})]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.conll", "a.conllu", "a.json"])
def test_a_gzip_file_cut_anywhere_is_named(tmp_path, name):
    """Rows that came before are handed out; the rest is one refusal that names the file."""
    text = json.dumps({"data": []}) if name == "a.json" else "".join(f"text {i}\tO\n" for i in range(9))
    whole = gzip.compress(text.encode())
    for n in range(1, len(whole)):
        path = write(tmp_path / f"{name}.gz", whole[:n])
        try:
            refusals = [str(row) for row in read_rows(path) if isinstance(row, DataError)]
        except DataError as error:
            refusals = [str(error)]
        assert any("broken gzip" in line and f"{name}.gz" in line for line in refusals), n


def test_tables_have_names_or_numbers(tmp_path):
    text = 'id,text\n1,"a, ""b""\nc"\n\n2,d\n3\n4,e\n'
    found = values(write(tmp_path / "a.csv", text))
    assert found[0] == (2, {"id": "1", "text": 'a, "b"\nc'})
    assert found[1] == (5, {"id": "2", "text": "d"})
    assert found[2].endswith("a.csv:6: wrong number of fields: 1, but 2 in the first row")
    assert found[3] == (7, {"id": "4", "text": "e"})
    assert values(write(tmp_path / "a.tsv", 'x\t"y\n'), header=False) == [(1, {"1": "x", "2": '"y'})]
    broken = values(write(tmp_path / "b.csv", 'text\n"a"b\nc\n'))
    assert broken[0].startswith(f"{tmp_path / 'b.csv'}:2: not valid CSV")


def test_json_lines(tmp_path):
    found = values(write(tmp_path / "a.jsonl", '{"text": "a"}\n\n[1]\n{"text"\n{"text": "b"}\n'))
    assert (found[0], found[3]) == ((1, {"text": "a"}), (5, {"text": "b"}))
    assert "a.jsonl:3: not a JSON object" in found[1]
    assert "a.jsonl:4: not valid JSON" in found[2]


def test_sentences_and_questions(tmp_path):
    text = "-DOCSTART- O\n\nAda NNP B-PER\n# NN O\n\ngoes VB O\n"
    assert values(write(tmp_path / "a.conll", text)) == [(3, {"tokens": ["Ada", "#"]}), (6, {"tokens": ["goes"]})]
    tree = "# text = Go on\n1-2\tGoon\t_\n1\tGo\tgo\n2\ton\ton\n"
    assert values(write(tmp_path / "a.conllu", tree)) == [(3, {"tokens": ["Go", "on"]})]
    asked = {"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "7", "question": "q?"}]}]}]}
    found = values(write(tmp_path / "q.json", json.dumps(asked)))
    assert found == [(1, {"id": "7", "question": "q?", "context": "c"})]


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="parquet needs kinfolk[data]")
    parquet = pytest.importorskip("pyarrow.parquet", reason="parquet needs kinfolk[data]")
    parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "a.parquet")
    assert values(str(tmp_path / "a.parquet")) == [(1, {"text": "a"}), (2, {"text": None})]
    with pytest.raises(DataError, match="not a parquet file"):
        values(write(tmp_path / "b.parquet", "no"))


def test_forms_are_known_or_refused(tmp_path):
    assert [form_of(name) for name in ("a.csv.gz", "a.NDJSON", "a.bio", "a.md", "-")] == [
        "csv",
        "jsonl",
        "conll",
        "text",
        "",
    ]
    with pytest.raises(DataError, match="unknown form 'xml'"):
        values(write(tmp_path / "a.txt", "x"), "xml")
    with pytest.raises(DataError, match="cannot be read as a stream"):
        values("-", "parquet")


def test_words_of_a_text():
    text = "Don't stop, Zo\u00eb!"
    found = split_words(text)
    assert found.words == ("Don't", "stop", ",", "Zo\u00eb", "!")
    assert [text[a:b] for a, b in found.places] == list(found.words)
