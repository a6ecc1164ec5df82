"""From files to a folder: what is in it, that it is always the same, and that nothing can spoil it."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import psutil
import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import Preparation, Tokenizer, prepare
from kinfolk.data.preparing.job import run_job
from kinfolk.data.preparing.manifest import open_prepared
from kinfolk.data.preparing.plan import make_plan
from kinfolk.data.preparing.progress import bar
from kinfolk.data.preparing.sampling import sample
from kinfolk.data.splits.split import PairSplit, TextSplit
from kinfolk.data.tokenizers.learn import make_tokenizer
from tests.data.made import contents, prose
from tests.data.victim import SMALL_JOBS

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of several jobs."""
    path = tmp_path_factory.mktemp("raw") / "text.txt"
    path.write_text(prose(6 * MEGABYTE), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of ten small jobs."""
    path = tmp_path_factory.mktemp("raw") / "short.txt"
    path.write_text(prose(MEGABYTE), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a tokenizer."""
    path = tmp_path_factory.mktemp("tokenizer") / "bpe.json"
    make_tokenizer(Preparation(tokenizer="bpe", vocab=2000), [prose(100_000)]).save(path)
    return str(path)


def test_every_document_is_there_between_bos_and_eos(tmp_path: Path) -> None:
    rows = [f"Zeile {i} ü" for i in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    manifest = prepare([tmp_path / "a.jsonl"], tmp_path / "out", Preparation(valid=0.2))
    data = open_prepared(tmp_path / "out")
    found: list[str] = []
    for name in ("train", "valid"):
        split = data.split(name)
        assert isinstance(split, TextSplit)
        documents = [split.document(i) for i in range(len(split))]
        assert all((d[0], d[-1]) == (data.tokenizer.bos, data.tokenizer.eos) for d in documents)
        texts = [data.tokenizer.decode(d) for d in documents]
        stated = manifest.splits[name]
        assert stated["documents"] == len(split) == len(texts)
        assert stated["bytes"] == split.n_bytes == sum(len(t.encode()) for t in texts)
        assert stated["tokens"] == split.n_tokens == sum(map(len, documents))
        found += texts
    assert sorted(found) == sorted(rows)
    assert 20 <= manifest.splits["valid"]["documents"] <= 60


def test_pairs_keep_their_sides(tmp_path: Path) -> None:
    (tmp_path / "a.de").write_text("".join(f"Satz {i}\n" for i in range(100)))
    (tmp_path / "a.en").write_text("".join(f"sentence {i * i}\n" for i in range(100)))
    prepare([tmp_path / "a.de", tmp_path / "a.en"], tmp_path / "out", Preparation(pairs=True, valid=0.1))
    data = open_prepared(tmp_path / "out")
    assert data.kind == "pairs"
    found = []
    for name in ("train", "valid"):
        split = data.split(name)
        assert isinstance(split, PairSplit)
        pairs = [(data.tokenizer.decode(s), data.tokenizer.decode(t)) for s, t in split.pairs(np.arange(len(split)))]
        assert split.n_bytes == sum(len(target) for _, target in pairs)
        assert split.n_tokens == split.n_bytes + len(pairs)
        source, target = split.lengths(np.arange(len(split)))
        assert [(len(s), len(t)) for s, t in pairs] == list(zip(source.tolist(), target.tolist(), strict=True))
        found += pairs
    assert sorted(found) == sorted((f"Satz {i}", f"sentence {i * i}") for i in range(100))


def test_a_text_loses_and_gains_nothing(text: Path, tmp_path: Path) -> None:
    prepare([text], tmp_path / "out", Preparation(valid=0))
    split = open_prepared(tmp_path / "out").split("train")
    assert isinstance(split, TextSplit)
    raw = b"".join(split.tokenizer.decode_bytes(split.document(i)) for i in range(len(split)))
    assert raw == text.read_bytes()


def test_one_text_gives_both_splits(tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_text(prose(3000), encoding="utf-8")
    manifest = prepare([tmp_path / "small.txt"], tmp_path / "out")
    assert all(manifest.splits[name]["documents"] for name in ("train", "valid"))


@pytest.mark.parametrize("seed", range(6))
def test_two_documents_are_enough_for_both_splits(tmp_path: Path, seed: int) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    manifest = prepare([tmp_path / "a.jsonl"], tmp_path / "out", Preparation(seed=seed, valid=0.5))
    assert [manifest.splits[name]["documents"] for name in ("train", "valid")] == [1, 1]


def test_one_document_is_for_training_only(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    prepare([tmp_path / "a.jsonl"], tmp_path / "out")
    data = open_prepared(tmp_path / "out")
    assert len(data.split("train")) == 1
    with pytest.raises(DataError, match="the valid part is empty"):
        data.split("valid")
    with pytest.raises(DataError, match="no split 'val'; did you mean 'valid'"):
        data.split("val")


def test_another_seed_holds_out_others(text: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        prepare([text], tmp_path / str(seed), Preparation(seed=seed))
    assert contents(tmp_path / "0") != contents(tmp_path / "1")


# always the same


@pytest.mark.parametrize("tokenizer", ["byte", "word"])
def test_the_number_of_workers_changes_nothing(short: Path, tmp_path: Path, tokenizer: str) -> None:
    for workers in (1, 2, 3):
        with SMALL_JOBS:
            prepare([short], tmp_path / str(workers), Preparation(tokenizer=tokenizer), workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
    assert len(list((tmp_path / "1").glob("train-*.bin"))) == 11


def test_a_copy_of_the_input_gives_the_same_data(text: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / text.name
    copy.parent.mkdir()
    copy.write_bytes(text.read_bytes())
    prepare([text], tmp_path / "1")
    prepare([copy], tmp_path / "2")
    one, two = contents(tmp_path / "1"), contents(tmp_path / "2")
    assert {**one, ".request": ""} == {**two, ".request": ""}
    assert open_prepared(tmp_path / "1").fingerprint == open_prepared(tmp_path / "2").fingerprint


def victim(text: Path, out: Path, tokenizer: str, limit: int, whom: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.data.victim", str(text), str(out), tokenizer, str(limit), whom]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(short: Path, tmp_path_factory: pytest.TempPathFactory, bpe: str) -> dict[str, str]:
    """What is made of the short text when nothing comes between."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with SMALL_JOBS:
        prepare([short], out, Preparation(tokenizer=bpe), workers=1)
    return contents(out)


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    short: Path, tmp_path: Path, bpe: str, whole: dict[str, str]
) -> None:
    out = tmp_path / "out"
    for limit in (1, 300_000, 800_000):
        child = victim(short, out, bpe, limit, "itself")
        errors = child.communicate()[1]
        assert child.returncode == -signal.SIGKILL, errors
        with pytest.raises(DataError, match="cannot be read"):
            open_prepared(out)
    # the last of them did not begin anew
    assert list(out.glob("work/job-*.json"))
    with SMALL_JOBS:
        prepare([short], out, Preparation(tokenizer=bpe), workers=1)
    assert contents(out) == whole


def test_a_worker_that_dies_is_an_error_and_the_rest_is_done_later(
    short: Path, tmp_path: Path, bpe: str, whole: dict[str, str]
) -> None:
    child = victim(short, tmp_path / "out", bpe, 300_000, "worker")
    assert "a worker ended (code -9) in the middle of job" in child.communicate()[1]
    with SMALL_JOBS:
        prepare([short], tmp_path / "out", Preparation(tokenizer=bpe))
    assert contents(tmp_path / "out") == whole


def test_workers_do_not_outlive_a_killed_parent(short: Path, tmp_path: Path, bpe: str) -> None:
    child = victim(short, tmp_path / "out", bpe, 300_000, "itself")
    workers = [int(pid) for pid in child.communicate()[0].split()]
    assert len(workers) == 2
    alive = [psutil.Process(pid) for pid in workers if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(alive, timeout=60)[1]


def test_two_at_once_in_one_folder_take_turns(short: Path, tmp_path: Path, bpe: str, whole: dict[str, str]) -> None:
    children = [victim(short, tmp_path / "out", bpe, 0, "nobody") for _ in range(2)]
    assert [child.communicate()[1] for child in children] == ["", ""]
    assert contents(tmp_path / "out") == whole


def test_finished_jobs_are_not_done_again(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        mock.patch("kinfolk.data.preparing.prepare.gather", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        prepare([text], out, workers=1)
    (out / "work" / "job-00002.json").unlink()
    with mock.patch("kinfolk.data.preparing.crew.run_job") as done, pytest.raises(DataError):
        prepare([text], out, workers=1)
    assert [call.args[1] for call in done.call_args_list] == [2]
    prepare([text], out, workers=1)
    prepare([text], tmp_path / "whole", workers=1)
    assert contents(out) == contents(tmp_path / "whole")


def test_done_twice_it_does_nothing(text: Path, tmp_path: Path) -> None:
    first = prepare([text], tmp_path / "out")
    with mock.patch("kinfolk.data.preparing.prepare._do_jobs") as done:
        assert prepare([text], tmp_path / "out") == first
    assert not done.called


# bad rows


def test_stop_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = json.dumps({"text": "a" * 1000}) + "\n"
    path.write_text(good * 2000 + "{broken\n" + good * 500)
    with pytest.raises(DataError, match=r"a.jsonl:2001: not valid JSON.*--on-bad skip"):
        prepare([path], tmp_path / "out", workers=2)


def test_skip_counts_and_lists_every_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{broken\n{"text": "b"}\n{"text": ""}\n')
    (tmp_path / "empty.txt").touch()
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "b.csv").write_text("text\nx,y\ngood\n")
    manifest = prepare([tmp_path], tmp_path / "out", Preparation(on_bad="skip"))
    assert manifest.bad == {
        "empty file": 1,
        "binary file": 1,
        "not valid JSON": 1,
        "empty text": 1,
        "wrong number of fields": 1,
    }
    assert manifest.bad_rows == 5
    rows = [json.loads(line) for line in (tmp_path / "out" / "bad.jsonl").read_text().splitlines()]
    where = {(Path(row["file"]).name, row["line"], row["reason"]) for row in rows}
    assert where == {
        ("a.jsonl", 2, "not valid JSON"),
        ("a.jsonl", 4, "empty text"),
        ("b.csv", 2, "wrong number of fields"),
        ("empty.txt", 1, "empty file"),
        ("image.png", 1, "binary file"),
    }
    assert sum(manifest.splits[name]["documents"] for name in ("train", "valid")) == 3


def test_after_stopping_at_a_bad_row_skip_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text((json.dumps({"text": "a" * 1000}) + "\n") * 2500 + "{broken\n")
    with pytest.raises(DataError, match=r"a.jsonl:2501"):
        prepare([path], tmp_path / "out", workers=1)
    with mock.patch("kinfolk.data.preparing.crew.run_job", wraps=run_job) as done:
        manifest = prepare([path], tmp_path / "out", Preparation(on_bad="skip"), workers=1)
    assert [call.args[1] for call in done.call_args_list] == [2]
    assert manifest.bad == {"not valid JSON": 1}
    prepare([path], tmp_path / "anew", Preparation(on_bad="skip"), workers=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "anew")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt:1: empty file"),
        ("a.txt", b"\0\1\2", "a.txt:1: binary file: NUL at byte 0"),
        ("a.txt", b"one\ntw\xff\n", "a.txt:2: not valid UTF-8: byte 0xff at column 3"),
        ("a.csv", b"text\na,b\n", "a.csv:2: wrong number of fields: 2, but 1 in the first row"),
        ("a.csv", b"body\na\n", "a.csv:1: column missing: no 'text'"),
        ("a.jsonl", b"{}", "a.jsonl:1: key missing: no 'text'"),
    ],
)
def test_the_first_bad_row_stops(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        prepare([tmp_path / name], tmp_path / "out")
    assert message in str(error.value)


def test_nothing_but_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{broken\n")
    with pytest.raises(DataError, match="every row of the input is bad"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "out", Preparation(on_bad="skip"))
    (tmp_path / "b.txt").touch()
    with pytest.raises(DataError, match="none of the 1 files can be used"):
        prepare([tmp_path / "b.txt"], tmp_path / "out2", Preparation(on_bad="skip"))


def test_a_line_of_100_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"0123456789abcdef" * (MEGABYTE // 16))
    manifest = prepare([path], tmp_path / "out")
    assert sum(manifest.splits[name]["bytes"] for name in ("train", "valid")) == 100 * MEGABYTE
    path = path.rename(tmp_path / "line.jsonl")
    with pytest.raises(DataError, match=r"line.jsonl:1: line too long: more than 16777216 bytes; --max-line"):
        prepare([path], tmp_path / "out2")


# folders


def test_a_folder_with_something_else_in_it_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(DataError, match=r"not empty \(it holds 'precious.txt'\)"):
        prepare([text], tmp_path)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_finished_data_of_other_choices_is_left_alone(text: Path, tmp_path: Path) -> None:
    prepare([text], tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(DataError, match="other files or other choices"):
        prepare([text], tmp_path / "out", Preparation(seed=1))
    assert contents(tmp_path / "out") == before


def test_unfinished_data_of_other_choices_is_begun_anew(text: Path, tmp_path: Path) -> None:
    with (
        mock.patch("kinfolk.data.preparing.prepare.gather", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        prepare([text], tmp_path / "out")
    prepare([text], tmp_path / "out", Preparation(seed=1))
    prepare([text], tmp_path / "anew", Preparation(seed=1))
    assert contents(tmp_path / "out") == contents(tmp_path / "anew")


def test_a_full_disk_is_a_clear_error_and_can_be_gone_on_from(text: Path, tmp_path: Path) -> None:
    full = OSError(28, "No space left on device", "train-00000.bin")
    with (
        mock.patch("kinfolk.data.preparing.shards._Hashed.write", side_effect=full),
        pytest.raises(DataError, match=r"train-00000.bin: No space left on device; what is finished stays"),
    ):
        prepare([text], tmp_path / "out", workers=1)
    prepare([text], tmp_path / "out")
    assert open_prepared(tmp_path / "out", verify=True).split("train").n_tokens > 0


def test_a_file_that_changes_on_the_way(text: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(text.read_bytes())
    plan = make_plan([path], Preparation())
    path.write_text("shorter")
    with (
        mock.patch("kinfolk.data.preparing.prepare.make_plan", return_value=plan),
        pytest.raises(DataError, match="has changed"),
    ):
        prepare([path], tmp_path / "out", workers=1)


# tokenizers


def test_unknown_words_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n' * 50 + '{"text": "c d"}\n')
    manifest = prepare([tmp_path / "a.jsonl"], tmp_path / "out", Preparation(tokenizer="word", vocab=9, valid=0))
    assert manifest.tokenizer["vocab_size"] == 9
    assert manifest.splits["train"]["unknown"] == 2


def test_the_sample_is_bounded_seeded_and_without_what_is_held_out(text: Path) -> None:
    whole = "".join(sample(make_plan([text], Preparation(valid=0)), lambda _: None))
    assert whole == text.read_text(encoding="utf-8")
    some = make_plan([text], Preparation(sample=60_000))
    size = len("".join(sample(some, lambda _: None)))
    assert 50_000 < size <= 60_000
    assert list(sample(some, lambda _: None)) == list(sample(some, lambda _: None))
    train = "".join(sample(make_plan([text], Preparation(valid=0.5)), lambda _: None))
    assert 0.3 < len(train) / len(whole) < 0.7


def test_a_tokenizer_of_one_s_own(short: Path, tmp_path: Path, bpe: str) -> None:
    manifest = prepare([short], tmp_path / "out", Preparation(tokenizer=bpe))
    assert manifest.tokenizer["kind"] == "bpe"
    assert manifest.preparation["tokenizer"] == "bpe.json"
    assert open_prepared(tmp_path / "out").tokenizer.to_json() == Tokenizer.load(bpe).to_json()


def test_impossible_choices_are_refused(text: Path, tmp_path: Path) -> None:
    for choices, message in (
        ({"on_bad": "ignore"}, "on_bad: unknown choice 'ignore'"),
        ({"valid": 1.0}, "less than 1, not 1.0"),
        ({"max_line": 0}, "max_line: must be at least 1"),
        ({"tokenizer": "bqe"}, "did you mean 'bpe'"),
    ):
        with pytest.raises(DataError, match=message):
            prepare([text], tmp_path / "out", Preparation(**choices))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_preparing_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n" * 100)
    code = "import sys; from kinfolk.data import prepare; prepare(sys.argv[1:2], sys.argv[2]); print(*sys.modules)"
    command = [sys.executable, "-c", code, str(tmp_path / "a.txt"), str(tmp_path / "out")]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "numpy" in imported
    assert not {"torch", "pyarrow"} & set(imported)


# progress


def test_a_bar_is_shown_to_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("preparing", 1000) as tell:
        tell(1000)
    assert capsys.readouterr().err == ""
    with mock.patch("sys.stderr.isatty", return_value=True), bar("preparing", 1000) as tell:
        tell(400)
        tell(600)
    shown = capsys.readouterr().err
    assert "preparing" in shown
    assert "1.0/1.0 kB" in shown


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_adds_up_to_the_whole(short: Path, tmp_path: Path, workers: int) -> None:
    told: list[int] = []

    @contextmanager
    def listen(what: str, total: int) -> Iterator[Callable[[int], None]]:
        assert (what, total) == ("preparing", short.stat().st_size)
        yield told.append

    with SMALL_JOBS, mock.patch("kinfolk.data.preparing.prepare.bar", listen):
        prepare([short], tmp_path / "out", workers=workers)
    assert len(told) > 5
    assert min(told) >= 0
    assert sum(told) == short.stat().st_size
