"""One door to all data."""

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import Batches, Preparation, open_data, prepare
from kinfolk.data.generated.stdlib import stdlib_files
from kinfolk.data.splits.split import TextSplit
from tests.data.made import prose


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "my.txt"
    path.write_text(prose(5000), encoding="utf-8")
    return path


def test_the_standard_library_is_there_and_is_python(tmp_path: Path) -> None:
    data = open_data("stdlib:megabytes=1", cache=tmp_path)
    split = data.split("train")
    assert (data.name, data.kind) == ("stdlib:megabytes=1", "text")
    assert isinstance(split, TextSplit)
    assert 500_000 < split.n_bytes + data.split("valid").n_bytes <= 1_000_000
    assert "def " in data.tokenizer.decode(split.window(0, 100_000))
    with mock.patch("kinfolk.data.opening.prepare") as prepared:
        again = open_data("stdlib:megabytes=1", cache=tmp_path)
    assert not prepared.called
    assert again.fingerprint == data.fingerprint


def test_the_standard_library_has_no_tests_and_nothing_installed() -> None:
    files = stdlib_files()
    assert files == sorted(files)
    names = {part for file in files for part in file.parts}
    assert {"argparse.py", "json"} <= names
    assert not {"site-packages", "idle_test", "__pycache__"} & names
    assert set(stdlib_files(2)) < set(files)
    assert 1_500_000 < sum(file.stat().st_size for file in stdlib_files(2)) <= 2_000_000


def test_a_python_without_its_source(tmp_path: Path) -> None:
    with (
        mock.patch("sysconfig.get_path", return_value=str(tmp_path)),
        pytest.raises(DataError, match="keeps no source"),
    ):
        stdlib_files()


def test_a_raw_file_is_prepared_once(raw: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    data = open_data(raw, cache=cache, tokenizer="bpe", vocab=300)
    assert data.name == str(raw)
    assert data.tokenizer.vocab_size == 300
    with mock.patch("kinfolk.data.opening.prepare") as prepared:
        assert open_data(raw, cache=cache, tokenizer="bpe", vocab=300).fingerprint == data.fingerprint
    assert not prepared.called
    other = open_data(raw, cache=cache, tokenizer="byte")
    assert other.fingerprint != data.fingerprint
    assert len(list(cache.iterdir())) == 2


def test_a_raw_file_that_changed_is_prepared_again(raw: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = open_data(raw, cache=cache)
    raw.write_text(prose(5000, seed=1), encoding="utf-8")
    assert open_data(raw, cache=cache).fingerprint != first.fingerprint


def test_every_choice_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("".join(f"eins {i}\tone {i}\n" for i in range(50)))
    data = open_data(tmp_path / "a.tsv", cache=tmp_path / "cache", choices=Preparation(pairs=True, valid=0.3))
    assert data.kind == "pairs"
    assert len(data.split("valid")) > 5


def test_the_cache_is_where_the_environment_says(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFOLK_CACHE", str(tmp_path / "there"))
    open_data(raw)
    assert list((tmp_path / "there").glob("my-*/manifest.json"))
    monkeypatch.delenv("KINFOLK_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    open_data(raw)
    assert list((tmp_path / "home/.cache/kinfolk").glob("my-*/manifest.json"))


def test_a_prepared_folder_keeps_its_own_tokenizer(raw: Path, tmp_path: Path) -> None:
    prepare([raw], tmp_path / "out", Preparation(tokenizer="char"))
    data = open_data(tmp_path / "out", tokenizer="bpe")
    assert data.tokenizer.kind == "char"
    batch = Batches(data.split("train"), batch_size=2, length=16).at(0)
    assert batch.tokens.shape == (2, 17)
    assert data.tokenizer.decode(batch.tokens[0]) in raw.read_text(encoding="utf-8")


def test_an_unfinished_folder_says_so(raw: Path, tmp_path: Path) -> None:
    with (
        mock.patch("kinfolk.data.preparing.prepare.gather", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        prepare([raw], tmp_path / "out")
    with pytest.raises(DataError, match="not finished being prepared; run the same `kin prepare`"):
        open_data(tmp_path / "out")


def test_a_folder_of_raw_files(raw: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    raw.rename(folder / "a.txt")
    assert open_data(folder, cache=tmp_path / "cache").split("train").n_tokens > 1000


def test_an_unknown_name_has_a_nearest_match(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'reverse'"):
        open_data("revers")
    with pytest.raises(DataError, match="did you mean 'megabytes'"):
        open_data("stdlib:megabites=2")
    with pytest.raises(DataError, match=r"nowhere.txt: no such file or folder"):
        open_data(tmp_path / "nowhere.txt")


def test_a_bare_script_may_prepare_on_all_cores(tmp_path: Path) -> None:
    # no `if __name__ == "__main__"`: workers must not run the script again
    (tmp_path / "a.txt").write_text(prose(2_200_000), encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text(
        "from kinfolk.data import open_data\nprint('once')\n"
        f"print(open_data({str(tmp_path / 'a.txt')!r}, cache={str(tmp_path / 'cache')!r}, workers=2).kind)\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert run.stdout == "once\ntext\n"
