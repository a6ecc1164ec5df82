"""Every format, and everything that can be wrong with a file."""

import gzip
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.core.errors import DataError, MissingExtraError
from kinfolk.data.files.documents import pieces
from kinfolk.data.files.reader import Bad, Document, FileSpan, reader_of
from kinfolk.data.files.readers import find_sources, read
from kinfolk.data.preparing.plan import make_plan
from kinfolk.data.preparing.preparation import Preparation


class Read:
    """What came out of some files: the texts, and the bad rows as (line, reason)."""

    def __init__(self, *paths: Path, piece: int = 64, **choices: object) -> None:
        chosen = Preparation(**choices)  # type: ignore[arg-type]
        self.items: list[Document | Bad] = []
        for source in find_sources(paths, pairs=chosen.pairs):
            self.items += read(source, FileSpan(0), chosen, piece)
        documents = [item for item in self.items if isinstance(item, Document)]
        self.texts = [document.texts if chosen.pairs else document.texts[0] for document in documents]
        self.sizes = [document.sizes for document in documents]
        self.bad = [(item.line, item.reason) for item in self.items if isinstance(item, Bad)]
        self.details = [item.why for item in self.items if isinstance(item, Bad)]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, bytes | str], Path]:
    """Write a file and return its path; a name that ends in .gz is compressed."""

    def write(name: str, content: bytes | str) -> Path:
        raw = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        return path

    return write


Write = Callable[[str, bytes | str], Path]


# plain text


@given(
    raw=st.lists(st.sampled_from(["a", "bc ", "é", "東", "\n", "\n\n", "\r\n"]), max_size=200), piece=st.integers(1, 30)
)
def test_text_is_cut_between_characters_and_nothing_is_lost(raw: list[str], piece: int) -> None:
    text = "".join(raw).encode()
    found = list(pieces(io.BytesIO(text), None, piece))  # type: ignore[arg-type]
    assert b"".join(found) == text
    for part in found:
        assert part
        part.decode()
        assert len(part) <= 2 * piece + 3


def test_text_is_cut_at_blank_lines_if_there_are_any(file: Write) -> None:
    text = ("word " * 15 + "\n\n") * 5
    assert Read(file("a.txt", text), piece=64).texts == ["word " * 15 + "\n\n"] * 5


def test_a_short_text_stays_whole(file: Write) -> None:
    assert Read(file("a.txt", "one\n\ntwo\n"), piece=64).texts == ["one\n\ntwo\n"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_bad_line_is_taken_out_of_its_text(file: Write, name: str) -> None:
    found = Read(file(name, b"good\n\xff\xfe bad\ngood\n" + b"more\n" * 30 + b"a\0b\nlast"), piece=16)
    assert "".join(map(str, found.texts)) == "good\ngood\n" + "more\n" * 30 + "last"
    assert found.bad == [(2, "not valid UTF-8"), (34, "NUL byte")]
    assert "byte 0xff at column 1" in found.details[0]


def test_a_line_longer_than_any_buffer_is_cut(file: Write) -> None:
    text = "é" * 3_000_000
    found = Read(file("a.txt", text), piece=1 << 16)
    assert "".join(map(str, found.texts)) == text
    assert max(size for (size,) in found.sizes) <= 2 * (1 << 16) + 3


def test_a_byte_order_mark_is_passed_over(file: Write) -> None:
    bom = b"\xef\xbb\xbf"
    assert Read(file("a.txt", bom + b"text")).texts == ["text"]
    assert Read(file("a.csv", bom + b"text\nhello\n")).texts == ["hello"]
    assert Read(file("a.jsonl", bom + b'{"text": "hello"}')).texts == ["hello"]


def test_any_other_ending_is_text(file: Write) -> None:
    assert Read(file("train.de", "Guten Tag\n")).texts == ["Guten Tag\n"]


# JSON lines


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.ndjson"])
def test_json_lines(file: Write, name: str) -> None:
    found = Read(file(name, '{"text": "one\\ntwo", "x": 1}\n\n{"text": "drei ü"}'))
    assert found.texts == ["one\ntwo", "drei ü"]
    assert found.sizes == [(7,), (7,)]
    assert found.bad == []


def test_a_chosen_key_and_pairs(file: Write) -> None:
    path = file("a.jsonl", '{"de": "eins", "en": "one"}\n')
    assert Read(path, text_column="en").texts == ["one"]
    assert Read(path, pairs=True, source_column="de", target_column="en").texts == [("eins", "one")]


def test_bad_json_rows(file: Write) -> None:
    rows = [
        b'{"text": "good"}',
        b"{not json",
        b"[1, 2]",
        b'{"txt": "typo"}',
        b'{"text": 5}',
        b'{"text": "  "}',
        b'{"text": "\xff"}',
        b'{"text": "\\ud800"}',
        b"[" * 100_000,
        b'{"text": "' + b"x" * 300_000 + b'"}',
        b'{"text": "end"}',
    ]
    found = Read(file("a.jsonl", b"\n".join(rows)), max_line=200_000)
    assert found.texts == ["good", "end"]
    assert found.bad == [
        (2, "not valid JSON"),
        (3, "not a JSON object"),
        (4, "key missing"),
        (5, "not text"),
        (6, "empty text"),
        (7, "not valid UTF-8"),
        (8, "not valid UTF-8"),
        (9, "not valid JSON"),
        (10, "line too long"),
    ]
    assert "did you mean 'txt'" in found.details[2]


# tables


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_csv_with_quotes_commas_and_lines_in_fields(file: Write, name: str) -> None:
    found = Read(file(name, 'id,text\n1,"one, ""two""\nthree"\r\n\n2,four\n'))
    assert found.texts == ['one, "two"\nthree', "four"]
    assert found.bad == []


@pytest.mark.parametrize("mark", [";", "\t"])
def test_csv_of_a_spreadsheet_may_have_other_separators(file: Write, mark: str) -> None:
    rows = f'id{mark}text\r\n1{mark}"a, b{mark} c"\r\n2{mark}d, e\r\n'
    assert Read(file("a.csv", rows)).texts == [f"a, b{mark} c", "d, e"]
    # a comma in the first row decides, whatever else is in it
    assert Read(file("b.csv", f"text,note{mark}s\na,b\n")).texts == ["a"]
    assert Read(file("c.csv", f'"text","x{mark}"\na,b\n')).texts == ["a"]


def test_bad_csv_rows(file: Write) -> None:
    rows = b'id,text\n1,good\n2\n3,a,b\n4,"multi\nline"\n5,\xff\n6,\n7,"a"b\n8,' + b"x" * 999 + b"\n9,z\0z\n10,end\n"
    found = Read(file("a.csv", rows), max_line=500)
    assert found.texts == ["good", "multi\nline", "end"]
    assert found.bad == [
        (3, "wrong number of fields"),
        (4, "wrong number of fields"),
        (7, "not valid UTF-8"),
        (8, "empty text"),
        (9, "not valid CSV"),
        (10, "line too long"),
        (11, "NUL byte"),
    ]


def test_a_quote_that_is_never_closed(file: Write) -> None:
    found = Read(file("a.csv", 'text\ngood\n"never closed\n' + "x\n" * 10))
    assert found.texts == ["good"]
    assert found.bad == [(3, "not valid CSV")]
    assert "up to line 13" in found.details[0]


def test_a_quoted_field_with_a_line_too_long_is_spoiled_as_a_whole(file: Write) -> None:
    found = Read(file("a.csv", 'text\n"begin\n' + "x" * 99 + '\nend"\nafter\n'), max_line=50)
    assert found.texts == ["after"]
    assert found.bad == [(2, "line too long")]


def test_a_bad_byte_in_a_column_nobody_wants_does_no_harm(file: Write) -> None:
    assert Read(file("a.csv", b"id,text\n\xff,fine\n")).texts == ["fine"]


def test_tsv_has_no_quoting(file: Write) -> None:
    found = Read(file("a.tsv", 'id\ttext\n1\tsay "hi\n2\t"quoted"\n3\n'))
    assert found.texts == ['say "hi', '"quoted"']
    assert found.bad == [(4, "wrong number of fields")]


def test_columns_by_number_mean_no_header(file: Write) -> None:
    path = file("a.tsv", "eins\tone\nzwei\ttwo\n")
    assert Read(path, text_column="2").texts == ["one", "two"]
    assert Read(path, pairs=True, source_column="2", target_column="1").texts == [("one", "eins"), ("two", "zwei")]


def test_two_columns_are_pairs_with_or_without_a_header(file: Write) -> None:
    assert Read(file("a.tsv", "eins\tone\n"), pairs=True).texts == [("eins", "one")]
    assert Read(file("b.csv", "target,source\none,eins\n"), pairs=True).texts == [("eins", "one")]


def test_a_missing_column_makes_the_file_unusable(file: Write) -> None:
    found = Read(file("a.csv", "id,texts\n1,a\n"))
    assert found.bad == [(1, "column missing")]
    assert "did you mean 'texts'" in found.details[0]
    assert "--text-column" in found.details[0]


# parquet


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    table = pyarrow.table({"text": ["one", None, "", "vier ü"], "n": [1, 2, 3, 4]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    found = Read(tmp_path / "a.parquet")
    assert found.texts == ["one", "vier ü"]
    assert found.bad == [(2, "not text"), (3, "empty text")]
    assert Read(tmp_path / "a.parquet", text_column="n").bad == [(i, "not text") for i in (1, 2, 3, 4)]
    missing = Read(tmp_path / "a.parquet", text_column="txt")
    assert missing.bad == [(1, "column missing")]
    assert "did you mean 'text'" in missing.details[0]


def test_row_groups_are_read_apart(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    parquet.write_table(pyarrow.table({"text": list("abcdef")}), tmp_path / "a.parquet", row_group_size=2)
    (source,) = find_sources([tmp_path / "a.parquet"], pairs=False)
    parts = [list(read(source, FileSpan(0, i, i + 1), Preparation(), 64)) for i in range(3)]
    assert [[item.texts[0] for item in part if isinstance(item, Document)] for part in parts] == [
        ["a", "b"],
        ["c", "d"],
        ["e", "f"],
    ]


def test_what_is_no_parquet_file(file: Write) -> None:
    pytest.importorskip("pyarrow")
    assert Read(file("a.parquet", "just text")).bad == [(1, "not a parquet file")]


def test_parquet_without_its_extra(file: Write) -> None:
    path = file("a.parquet", "x")
    with mock.patch.dict("sys.modules", {"pyarrow": None}), pytest.raises(MissingExtraError, match=r"kinfolk\[data\]"):
        Read(path)


def test_a_compressed_parquet_is_refused(file: Write) -> None:
    with pytest.raises(DataError, match=r"unpack the .gz first"):
        Read(file("a.parquet.gz", "x"))


# two files, line by line


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_two_files_go_line_by_line(file: Write, ending: str) -> None:
    found = Read(file(f"a.de{ending}", "eins\nzwei\r\n"), file(f"a.en{ending}", "one\ntwo"), pairs=True)
    assert found.texts == [("eins", "one"), ("zwei", "two")]
    assert found.bad == []


def test_bad_lines_of_two_files(file: Write) -> None:
    de, en = file("a.de", b"eins\n\nd\xffei\nvier\n"), file("a.en", b"one\ntwo\nthree\n" + b"4" * 99 + b"\n")
    found = Read(de, en, pairs=True, max_line=50)
    assert found.texts == [("eins", "one")]
    assert found.bad == [(2, "empty text"), (3, "not valid UTF-8"), (4, "line too long")]


def test_files_of_unequal_length(file: Write) -> None:
    short, long = file("a.de", "eins\nzwei\n"), file("a.en", "one\ntwo\nthree\nfour\n")
    found = Read(short, long, pairs=True)
    assert len(found.texts) == 2
    assert found.bad == [(3, "files of unequal length")]
    assert "2 lines less than in" in found.details[0]
    assert "2 lines more than in" in Read(long, short, pairs=True).details[0]


def test_a_text_file_alone_is_no_pair(file: Write) -> None:
    with pytest.raises(DataError, match=r"a.de: pairs need plain text files in twos"):
        Read(file("a.de", "eins\n"), pairs=True)


# whole files


def test_folders_are_read_in_a_fixed_order_without_hidden_files(file: Write, tmp_path: Path) -> None:
    for name in ("c.txt", "b/x.txt", "a.jsonl", ".hidden.txt", ".git/y.txt"):
        file(name, '{"text": "t"}\n')
    names = [Path(s.path).relative_to(tmp_path).as_posix() for s in find_sources([tmp_path], pairs=False)]
    assert names == ["a.jsonl", "c.txt", "b/x.txt"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"", "empty file"),
        ("a.txt", b"\xef\xbb\xbf", "empty file"),
        ("a.txt.gz", b"", "empty file"),
        ("a.parquet", b"", "empty file"),
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "binary file"),
        ("a.txt", "Grüße".encode("utf-16"), "binary file"),
        ("a.txt", b"fine", None),
        ("a.txt.gz", b"fine", None),
    ],
)
def test_files_that_cannot_be_used_at_all(file: Write, name: str, content: bytes, reason: str | None) -> None:
    (source,) = find_sources([file(name, content)], pairs=False)
    found = reader_of(source.format).unusable(source)
    assert (found and found[0]) == reason


def test_what_only_calls_itself_gzip(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(b"plain")
    (source,) = find_sources([tmp_path / "a.txt.gz"], pairs=False)
    found = reader_of(source.format).unusable(source)
    assert found is not None
    assert found[0] == "broken gzip"


def test_a_gzip_file_that_ends_early(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": f"row {i} {i * 7919}"}) + "\n" for i in range(20_000))
    whole = gzip.compress(lines.encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    found = Read(tmp_path / "a.jsonl.gz")
    assert 0 < len(found.texts) < 20_000
    assert [reason for _, reason in found.bad] == ["broken gzip"]
    assert found.texts[0] == "row 0 0"


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing.txt: cannot be read: No such file"):
        find_sources([tmp_path / "nothing.txt"], pairs=False)
    with pytest.raises(DataError, match="the folder holds no files"):
        find_sources([tmp_path], pairs=False)
    with pytest.raises(DataError, match="at least one file or folder"):
        find_sources([], pairs=False)


# parts of files


@given(
    rows=st.lists(st.text("ab é\n", max_size=12), min_size=1, max_size=40),
    cuts=st.sets(st.integers(1, 400), max_size=6),
    form=st.sampled_from(["text", "jsonl", "tsv"]),
)
def test_the_parts_of_a_file_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], cuts: set[int], form: str
) -> None:
    path = tmp_path_factory.mktemp("parts") / {"text": "a.txt", "jsonl": "a.jsonl", "tsv": "a.tsv"}[form]
    if form == "text":
        path.write_text("".join(rows) + "x", encoding="utf-8")
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    else:
        path.write_text("text\n" + "".join(row.replace("\n", " ") + "\n" for row in rows), encoding="utf-8")
    (source,) = find_sources([path], pairs=False)
    whole = list(read(source, FileSpan(0), Preparation(), 8))
    edges = [0, *sorted(cut for cut in cuts if cut < source.size), None]
    spans = [FileSpan(0, start or 0, stop) for start, stop in itertools.pairwise(edges)]
    parts = [item for span in spans for item in read(source, span, Preparation(), 8)]
    if form == "text":
        assert "".join(item.texts[0] for item in parts if isinstance(item, Document)) == path.read_text(
            encoding="utf-8"
        )
    else:
        # the same documents, and the same bad rows with the same line numbers
        assert parts == whole


def test_a_text_may_be_cut_into_parts_anywhere(file: Write) -> None:
    text = "é\néé\n\n東 x\r\n" * 3 + "no more lines 東é" * 3
    (source,) = find_sources([file("a.txt", text)], pairs=False)
    for cut in range(1, source.size):
        for near in (4, 1 << 16):
            with mock.patch("kinfolk.data.files.documents._NEAR", near):
                items = [
                    i for span in (FileSpan(0, 0, cut), FileSpan(0, cut)) for i in read(source, span, Preparation(), 8)
                ]
            assert "".join(item.texts[0] for item in items if isinstance(item, Document)) == text


def test_two_files_are_cut_at_the_same_lines(tmp_path: Path) -> None:
    n = 150_000
    (tmp_path / "a.de").write_text("".join(f"de {i}\n" for i in range(n)))
    (tmp_path / "a.en").write_text("".join(f"english {i * i}\n" for i in range(n - 1)))
    choices = Preparation(pairs=True)
    plan = make_plan([tmp_path / "a.de", tmp_path / "a.en"], choices)
    spans = [span for job in plan.jobs for span in job]
    assert len(spans) == 3
    items = [item for span in spans for item in read(plan.sources[0], span, choices, plan.piece)]
    assert [item.texts for item in items[:-1] if isinstance(item, Document)] == [
        (f"de {i}", f"english {i * i}") for i in range(n - 1)
    ]
    assert items[-1] == Bad(n, "files of unequal length", f"1 lines more than in {tmp_path / 'a.en'}")


def test_small_files_share_a_job_and_large_ones_are_cut(tmp_path: Path) -> None:
    for i in range(50):
        (tmp_path / f"{i:02}.txt").write_text("small\n")
    (tmp_path / "big.txt").write_bytes(b"line\n" * 700_000)
    plan = make_plan([tmp_path], Preparation())
    assert [len(job) for job in plan.jobs] == [51, 1, 1, 1]
    assert sum(map(plan.size, range(len(plan.jobs)))) == plan.total
