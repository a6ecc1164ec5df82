"""Memory does not grow with the input: eight times the text, the same peak.

The same by hand, on an input of any size, with the peak of every process:
`/usr/bin/time -v kin prepare big.txt --out out --workers 1`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.made import prose

MEGABYTE = 1 << 20

CODE = """
import resource, sys
from kinfolk.data import Preparation, prepare
workers, tokenizer, path, out = int(sys.argv[1]), *sys.argv[2:]
prepare([path], out, Preparation(tokenizer=tokenizer, sample=1 << 20, max_line=1 << 24), workers=workers)
print(*(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""


def peak(path: Path, out: Path, tokenizer: str = "byte", workers: int = 1) -> int:
    """Return the peak memory of the largest process, in MB."""
    command = [sys.executable, "-c", CODE, str(workers), tokenizer, str(path), str(out)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return max(map(int, run.stdout.split())) // 1024


def repeated(path: Path, unit: bytes, size: int) -> Path:
    with path.open("wb") as file:
        for _ in range(size // len(unit)):
            file.write(unit)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_eight_times_the_text_takes_the_same_memory(tmp_path: Path, workers: int) -> None:
    unit = prose(MEGABYTE).encode()
    small = peak(repeated(tmp_path / "small.txt", unit, 8 * MEGABYTE), tmp_path / "1", workers=workers)
    large = peak(repeated(tmp_path / "large.txt", unit, 64 * MEGABYTE), tmp_path / "2", workers=workers)
    assert large < small + 12


@pytest.mark.slow
def test_a_long_line_takes_no_more_memory(tmp_path: Path) -> None:
    lines = peak(repeated(tmp_path / "lines.txt", b"word word word\n", 8 * MEGABYTE), tmp_path / "1")
    line = peak(repeated(tmp_path / "line.txt", b"word", 48 * MEGABYTE), tmp_path / "2")
    assert line < lines + 12


@pytest.mark.slow
def test_rows_are_read_one_by_one(tmp_path: Path) -> None:
    unit = b'{"text": "' + b"some words of a row " * 50 + b'"}\n'
    small = peak(repeated(tmp_path / "small.jsonl", unit, 4 * MEGABYTE), tmp_path / "1")
    large = peak(repeated(tmp_path / "large.jsonl", unit, 32 * MEGABYTE), tmp_path / "2")
    assert large < small + 12
