"""The suite notices mistakes: of a hundred planted faults at least 97 % are caught by the tests beside them."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mutation

FAULTS = mutation.faults()
PARTS = 2
LOST = 0.03
"""The share of faults that may go unnoticed."""


def test_every_fault_can_be_planted_and_names_tests_that_exist() -> None:
    """Code moves on; a fault that no longer fits it must be brought up to date, not skipped."""
    assert len(FAULTS) >= 100
    assert len({(fault.file, fault.old, fault.new) for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        ast.parse(fault.planted())
        files = re.findall(r"[\w/]+\.py", fault.tests)
        assert files, fault
        text = "".join((mutation.ROOT / "tests" / file).read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"::(\w+)", fault.tests):
            assert f"def {name}(" in text, f"{fault.tests}: there is no {name}"


def test_a_fault_that_no_longer_fits_is_an_error() -> None:
    with pytest.raises(ValueError, match="is there 0 times, expected once"):
        mutation.Fault("ops/attention/attend.py", "no such text", "", "").planted()
    with pytest.raises(ValueError, match="times, expected once"):
        mutation.Fault("ops/attention/attend.py", "return", "yield", "").planted()


def test_a_slow_machine_is_no_failure(tmp_path: Path) -> None:
    """The limit of time for a test ends pytest with the code of a failure: a fault would count as caught."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntimeout = 0.1\ntimeout_method = "thread"\n')
    (tmp_path / "tests" / "test_slow.py").write_text("import time\n\n\ndef test_slow():\n    time.sleep(0.5)\n")
    call = "mutation.run(mutation.Fault('', '', '', 'test_slow.py').arguments(folder), folder)"
    code = f"import sys, pathlib; from tests import mutation; folder = pathlib.Path(sys.argv[1]); sys.exit({call})"
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=mutation.ROOT, check=False)
    assert ended.returncode == 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_faults_are_caught(part: int) -> None:
    """A process of its own: one that has imported the package cannot import it with a fault."""
    command = [sys.executable, "-m", "tests.mutation", f"{part}/{PARTS}"]
    ended = subprocess.run(command, cwd=mutation.ROOT, capture_output=True, text=True, check=False)
    lines = ended.stdout.splitlines()
    assert len(lines) == len(FAULTS[part - 1 :: PARTS]), ended.stderr
    assert [line for line in lines if not line.startswith(("caught", "SURVIVED"))] == []
    survivors = [line for line in lines if line.startswith("SURVIVED")]
    assert len(survivors) <= LOST * len(lines), survivors
