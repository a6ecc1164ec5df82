"""`kin prepare` as a user types it."""

import json
from pathlib import Path

import pytest

from kinfolk.cli.main import main
from kinfolk.data import open_data
from tests.data.made import prose


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "my.txt"
    path.write_text(prose(8000), encoding="utf-8")
    return path


def test_it_prepares_and_tells_what_is_there(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(text), "--out", str(tmp_path / "out"), "--tokenizer", "bpe", "--vocab", "300"]) == 0
    shown = capsys.readouterr().out
    for word in ("documents", "tokens per byte", "train", "valid", "bpe tokenizer with 300 ids"):
        assert word in shown
    assert open_data(tmp_path / "out").tokenizer.vocab_size == 300


def test_for_machines(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(text), "--out", str(tmp_path / "out"), "--json", "--valid", "0.1", "--seed", "7"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tokenizer"]["kind"] == "byte"
    splits = result["splits"]
    assert splits["train"]["bytes"] + splits["valid"]["bytes"] == text.stat().st_size
    assert result["bad rows"] == 0


def test_bad_rows_stop_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("body,n\ngood,1\nragged\n")
    command = ["prepare", str(tmp_path / "a.csv"), "--text-column", "body", "--out", str(tmp_path / "out")]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "a.csv:3: wrong number of fields: 1, but 2 in the first row" in error
    assert main([*command, "--on-bad", "skip"]) == 0
    shown = capsys.readouterr().out
    assert "bad rows left out: 1 (wrong number of fields 1)" in shown
    assert "the valid part is empty: there is only one document" in shown


def test_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, word in (("a.de", "eins"), ("a.en", "one")):
        (tmp_path / name).write_text("".join(f"{word} {i}\n" for i in range(60)))
    assert (
        main(["prepare", str(tmp_path / "a.de"), str(tmp_path / "a.en"), "--pairs", "--out", str(tmp_path / "o")]) == 0
    )
    assert "pairs, byte tokenizer" in capsys.readouterr().out
    (tmp_path / "b.csv").write_text("x,de,en\n" + "".join(f"{i},eins {i},one {i}\n" for i in range(60)))
    columns = ["--source-column", "de", "--target-column", "en"]
    assert main(["prepare", str(tmp_path / "b.csv"), *columns, "--out", str(tmp_path / "p")]) == 0
    assert open_data(tmp_path / "o").split("train").n_tokens == open_data(tmp_path / "p").split("train").n_tokens


def test_check_finds_damage(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    main(["prepare", str(text), "--out", str(out)])
    assert main(["prepare", str(out), "--check"]) == 0
    shard = out / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2] + b"\0\0")
    capsys.readouterr()
    assert main(["prepare", str(out), "--check"]) == 2
    assert "train-00000.bin: damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokenizer", "bep"], "did you mean 'bpe'"),
        (["--max-line", "many"], "expected a size such as 500, 16M or 2G"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--on-bad", "ignore"], "unknown choice 'ignore'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    text: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", str(text), "--out", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


def test_out_is_needed(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", str(text)]) == 2
    assert "--out is missing" in capsys.readouterr().err


def test_sizes() -> None:
    from kinfolk.cli.prepare import size

    assert [size(text) for text in ("500", "2k", "16M", "1G")] == [500, 2048, 1 << 24, 1 << 30]
