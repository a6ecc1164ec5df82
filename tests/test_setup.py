"""Set-up, licence and documents: what a newcomer meets first is true."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[1]
README = (HOUSE / "README.md").read_text(encoding="utf-8")
MAKEFILE = (HOUSE / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def block(text: str, language: str) -> str:
    """Return the first code block in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def pins() -> dict[str, str]:
    lines = (HOUSE / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines) if version}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    return normal(re.match(r"[\w.-]+", requirement)[0])


@pytest.fixture
def clone(tmp_path):
    """Return a folder with the Makefile and an environment that is said to be installed."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(HOUSE / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    return tmp_path


def make(folder, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def test_torch_is_installed_first_at_the_version_that_is_pinned():
    assert pins()["torch"] == "2.13.0"
    installs = [line.strip() for line in MAKEFILE.splitlines() if line.startswith("\t$(INSTALL)")]
    assert installs[0] == f"$(INSTALL) torch=={pins()['torch']}"
    assert f"pip install torch=={pins()['torch']}\n" in README


def test_everything_the_tests_need_is_pinned():
    extras = re.search(r"^EXTRAS := (.*)$", MAKEFILE, re.MULTILINE)[1].split(",")
    needed = [*PROJECT["dependencies"], *(r for extra in extras for r in PROJECT["optional-dependencies"][extra])]
    assert [name for name in map(name_of, needed) if name not in pins()] == []


def test_a_second_call_installs_nothing_and_a_changed_list_installs_again(clone):
    first = make(clone, "-n", "demo")
    assert "kin compare" in first.stdout
    assert "install" not in first.stdout
    later = (clone / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(clone / "constraints.txt", (later, later))
    again = make(clone, "-n", "demo").stdout
    steps = ("install --no-compile torch==2.13.0", "install --no-compile -c constraints.txt -e", "kin compare")
    places = [again.index(step) for step in steps]
    assert places == sorted(places)


def test_test_runs_everything_and_quick_leaves_the_slow_out(clone):
    whole, quick = make(clone, "-n", "test").stdout, make(clone, "-n", "quick").stdout
    for tool in ("ruff format --check", "ruff check", "mypy", "pytest -n 2"):
        assert tool in whole
        assert tool in quick
    assert '-m "not slow and not long"' in quick
    assert '-m "not long"' in whole
    assert "not slow" not in whole


@pytest.mark.parametrize(
    ("script", "message"),
    [("exit 1", "cannot make virtual environments (ensurepip is missing)"), ("", "Setting up .venv with")],
)
def test_a_python_without_ensurepip_is_explained(clone, script, message):
    (clone / ".venv" / ".installed").unlink()
    python = clone / "python"
    # answers `-c 'import ensurepip, venv'` with the given code, and fails to make the environment
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *ensurepip*) {script or "exit 0"};; *-V*) echo Python;; *) exit 1;; esac\n'
    )
    python.chmod(0o755)
    done = make(clone, "demo", f"PYTHON={python}")
    assert done.returncode != 0
    assert message in done.stdout + done.stderr


def test_no_python_at_all_is_explained(clone):
    (clone / ".venv" / ".installed").unlink()
    done = make(clone, "demo", "PYTHON=")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr


def test_continuous_integration_calls_the_test_command():
    script = HOUSE / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "\nmake test\n" in script.read_text(encoding="utf-8")


def test_the_licence_is_whole_and_named():
    text = (HOUSE / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "Apache-2.0" in str(PROJECT["license"])


def test_the_generated_parts_of_the_readme_are_up_to_date():
    sys.path.insert(0, str(HOUSE / "docs"))
    try:
        import readme
    finally:
        sys.path.remove(str(HOUSE / "docs"))
    # in a process of its own: tests before this one may have defined kinds
    code = (
        "import sys, json; sys.path[:0] = ['docs', '.']; import readme as r; print(json.dumps([r.pages(), r.parts()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=HOUSE, capture_output=True, text=True, check=True)
    pages, parts = json.loads(done.stdout)
    for name, text in pages.items():
        assert (HOUSE / name).read_text(encoding="utf-8") == text, f"{name}: run `make docs`"
    for name, own in parts.items():
        page = (HOUSE / name).read_text(encoding="utf-8")
        assert all(f"<!-- {part} -->" in page for part in own), name
        assert readme.written(page, own) == page, f"{name}: run `make docs`"
    assert {p.name for p in (HOUSE / "kinfolk").iterdir() if list(p.glob("*.py"))} <= set(readme.LAYERS)


def test_the_readme_names_files_that_exist():
    files = re.findall(r"\bkinfolk/[\w/]+\.py\b", README + (HOUSE / "docs" / "built.md").read_text(encoding="utf-8"))
    assert "kinfolk/ops/attention/attend.py" in files
    assert [name for name in files if not (HOUSE / name).exists()] == []
    links = re.findall(r"\]\(([^)#:]+)\)", README + (HOUSE / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert [name for name in links if not (HOUSE / name).exists()] == []
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", README))


def test_every_release_is_in_the_changelog():
    import kinfolk

    assert kinfolk.__version__ == PROJECT["version"]
    assert "## Unreleased" in (HOUSE / "CHANGELOG.md").read_text(encoding="utf-8")
