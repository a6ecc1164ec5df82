"""Planted faults: small changes that a mistake could make, each with the tests that must fail then.

`tests/faults.toml` is the table: a file of the package, a text that is there once, what a fault would put in its place,
and the tests to run. `python -m tests.mutation 1/2` runs every other fault, `python -m tests.mutation TEXT` those that
have the text in them. Every fault is planted in a copy of package and tests, which forks of this process
import: torch is loaded once.
"""

import compileall
import dataclasses
import importlib
import os
import py_compile
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 900.0
"""Seconds after which tests count as hanging, which is no answer: a busy machine is slow too.

The suite's own limit ends pytest as a failure would, so it is off: on a busy machine tests would fail without a fault
in the code, and "catch" any that is there.
"""
HEAVY = ("schemathesis", "anyio", "xdist", "xdist.looponfail")
"""Plugins that take longer to import than most of the tests here take to run."""
WARM = ("pytest", "hypothesis", "transformers", "rich.console", "torch.testing", "torch._dynamo")
"""What most tests import besides package and tests: forks have it for nothing, a fifth of the processor time of all."""
ENDS = {0: "SURVIVED", 1: "caught"}
"""What the exit codes of pytest mean here; any other is no answer."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A change of a file of the package, by its text, and what must notice it."""

    file: str
    old: str
    new: str
    tests: str

    def planted(self, folder: Path = ROOT) -> str:
        """Return the file with the fault in it, or say why the table no longer fits the code."""
        text = (folder / "kinfolk" / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1 or self.new == self.old:
            raise ValueError(f"{self.file}: {self.old!r} is there {text.count(self.old)} times, expected once")
        return text.replace(self.old, self.new)

    def arguments(self, folder: Path = ROOT) -> list[str]:
        """Return the arguments of pytest."""
        words = shlex.split(self.tests)
        places = [str(folder / "tests" / word) if ".py" in word else word for word in words]
        settings = ["--rootdir", str(folder), "-c", str(folder / "pyproject.toml"), "-p", "no:cacheprovider"]
        # pytest wants to import plugins itself; of those that are warm no assertions are rewritten
        settings += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        settings += ["-o", "timeout=0", "--basetemp", str(folder.with_suffix(".tmp"))]
        return ["-x", "-q", *settings, *(f"-pno:{name}" for name in HEAVY), *places]


def faults() -> list[Fault]:
    """Read the table."""
    rows = tomllib.loads((ROOT / "tests" / "faults.toml").read_text(encoding="utf-8"))["faults"]
    return [Fault(*row) for row in rows]


def copy(folder: Path) -> None:
    """Copy what tests need; what is compiled is checked against its source and not its time."""
    for name in ("kinfolk", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")
    checked = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder / "kinfolk", quiet=2, invalidation_mode=checked)


def run(arguments: list[str], folder: Path) -> int:
    """Run pytest in a fork that imports package and tests from `folder`; return its exit code."""
    child = os.fork()
    if not child:
        try:
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            os.chdir(folder)
            sys.dont_write_bytecode = True
            # processes that a test starts have the fault too
            os.environ["PYTHONPATH"] = str(folder)
            sys.path[:] = [str(folder), *(p for p in sys.path if p and Path(p).resolve() != ROOT)]
            for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
                del sys.modules[name]
            import pytest

            os._exit(int(pytest.main(arguments)))
        finally:
            os._exit(99)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -9


def plant(chosen: Iterable[Fault]) -> Iterator[tuple[Fault, str]]:
    """Plant each fault alone, and yield how its tests ended."""
    import torch

    torch.set_num_threads(1)
    for name in WARM:
        importlib.import_module(name)
    green: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tree"
        copy(folder)
        for fault in chosen:
            arguments = fault.arguments(folder)
            # tests that fail, or are not there, without the fault can catch nothing
            if fault.tests not in green and (code := run(arguments, folder)) != 0:
                yield fault, f"UNSOUND ({code})"
                continue
            green.add(fault.tests)
            file = folder / "kinfolk" / fault.file
            whole = file.read_text(encoding="utf-8")
            file.write_text(fault.planted(folder), encoding="utf-8")
            code = run(arguments, folder)
            file.write_text(whole, encoding="utf-8")
            yield fault, ENDS.get(code, f"NO ANSWER ({code})")


def main(part: str = "") -> None:
    """Print how each fault ended, one on a line."""
    number, _, count = part.partition("/")
    if count:
        chosen = faults()[int(number) - 1 :: int(count)]
    else:
        chosen = [fault for fault in faults() if part in f"{fault.file} {fault.old} {fault.tests}"]
    for fault, end in plant(chosen):
        sys.stdout.write(f"{end}: {fault.file}: {fault.old!r} -> {fault.new!r}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
