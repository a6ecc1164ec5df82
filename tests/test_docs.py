"""README and docs: commands and code run, options exist, links and anchors hold, the site builds with its search."""

import importlib.util
import json
import re
import shlex
import sys
import time
from pathlib import Path

import pytest

from kinfolk.cli.main import main, parser_of, verbs

HOUSE = Path(__file__).parents[1]
sys.path.insert(0, str(HOUSE / "docs"))
try:
    import build_site as site
finally:
    sys.path.remove(str(HOUSE / "docs"))

PAGES = [HOUSE / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "llms.txt")] + sorted(
    (HOUSE / "docs").glob("*.md")
)
IDS = [str(page.relative_to(HOUSE)) for page in PAGES]
# pages whose blocks run here, each in a folder of its own
RUN = ["README.md", "docs/start.md", "docs/training.md"]
BARE = {"make", "pip", "git", "python", "torchrun", "uv"}


def text(page):
    return page.read_text(encoding="utf-8")


def commands(page):
    """Return the `kin` commands of a page: lines of code that begin with it, joined where they go on."""
    joined = re.sub(r"\\\n\s*", " ", text(page))
    for match in re.finditer(r"^(?: {4}|\$ )?(kin [a-z]+(?:\s.*)?)$", joined, re.MULTILINE):
        # what a line of an indented block says behind the command is set off by spaces
        yield re.split(r" {3,}|  (?=[A-Za-z])", match[1])[0].strip()


def fences(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_has_a_verb_and_options_that_exist(page):
    for command in commands(page):
        try:
            words = shlex.split(command.replace("…", ""), comments=True)
        except ValueError as error:
            raise AssertionError(f"{command}: {error}") from None
        words = words[: next((i for i, word in enumerate(words) if word in ("|", ">", "&&", "&")), len(words))]
        if len(words) < 2 or words[1].startswith("-"):
            continue
        assert words[1] in verbs(), command
        known = {name for action in parser_of(words[1])._actions for name in action.option_strings}
        unknown = [w for w in words[2:] if re.match(r"--[a-z]", w) and w.partition("=")[0] not in known]
        assert not unknown, f"{command}: {unknown}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder as the pages assume it, and the commands that have run there."""
    return desk(tmp_path_factory.mktemp("desk")), set()


def desk(path):
    """Write a text and a table."""
    (path / "notes.txt").write_text("The quick brown fox jumps over the lazy dog, and then the fence.\n" * 400)
    reviews = [f"what a {word} film {n},{label}\n" for n in range(24) for word, label in WORDS]
    (path / "reviews.csv").write_text("text,label\n" + "".join(reviews))
    return path


WORDS = (("fine", "good"), ("dull", "bad"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_commands_of_a_page_run(name, folder, monkeypatch, capsys):
    path, done = folder
    monkeypatch.chdir(path)
    lines = [line for block in fences(HOUSE / name, "sh") for line in block.splitlines() if line.startswith("kin ")]
    assert lines
    for line in (line for line in lines if line not in done):
        assert main(shlex.split(line, comments=True)[1:]) == 0, f"{line}\n{capsys.readouterr().err}"
        done.add(line)
    for block in fences(HOUSE / name, "python"):
        exec(block, {})


@pytest.mark.slow
def test_the_python_of_the_guide_runs(tmp_path, monkeypatch):
    # a folder of its own: the pages before it use the same names for their runs
    monkeypatch.chdir(desk(tmp_path))
    names = {}
    blocks = fences(HOUSE / "docs" / "python.md", "python")
    assert len(blocks) > 8
    for block in blocks:
        exec(block, names)
    assert isinstance(names["text"], str)
    assert names["text"].startswith("The ")
    assert len(names["texts"]) == 2
    assert names["weights"].shape[-2:] == (16, 16)
    assert {"label", "score"} <= set(names["answers"][0])
    assert names["best"] in ("gpt", "gpt2")


@pytest.mark.slow
def test_the_same_tasks_run_in_each_library(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    others = importlib.util.find_spec("x_transformers") is not None
    monkeypatch.chdir(desk(tmp_path))
    names = {}
    blocks = fences(HOUSE / "docs" / "coming-from.md", "python")
    libraries = [re.match(r"# ([\w -]+?)(?::|\n)", block)[1] for block in blocks]
    assert libraries == ["Hugging Face transformers", "x-transformers", "Kinfolk"] * 5
    for library, block in zip(libraries, blocks, strict=True):
        if others or library != "x-transformers":
            exec(block, names)
    assert names["text"].startswith("The ")
    assert names["hf_text"].startswith("The ")
    assert names["y"].shape == (2, 16, 64)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_and_anchors_hold(page):
    outside = re.sub(r"```.*?```", "", text(page), flags=re.DOTALL)
    for href in re.findall(r"(?<!`)\]\(([^)\s]+)\)", outside):
        if ":" in href:
            continue
        path, _, anchor = href.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {href}"
        if anchor:
            assert anchor in site.anchors(text(target)), f"{page.name}: {href}"


def test_every_page_is_in_the_navigation():
    listed = {Path(page).name for page in site.navigation()}
    assert {page.name for page in (HOUSE / "docs").glob("*.md")} - {"index.md"} <= listed


def test_the_site_builds_offline_with_search(tmp_path):
    began = time.process_time()
    n = site.build(tmp_path / "site")
    assert time.process_time() - began < 120
    files = {file.name for file in (tmp_path / "site").glob("*.html")}
    assert len(files) == n
    for file in (tmp_path / "site").glob("*.html"):
        body = file.read_text(encoding="utf-8")
        assert not re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css)', body)
        for href in re.findall(r'href="([\w.-]+\.html)', body):
            assert href in files, f"{file.name}: {href}"
    index = (tmp_path / "site" / "search.js").read_text(encoding="utf-8")
    sections = json.loads(re.search(r"const pages = (\[.*?\]);\n", index, re.DOTALL)[1])
    assert any("performer" in section["text"] for section in sections)


def test_the_reference_lists_every_public_name():
    import kinfolk as kf

    page = (HOUSE / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in kf.__all__ if f"## kf.{name}\n" not in page] == []
    assert [name for name in kf.__all__ if name != "patterns" and not getattr(kf, name).__doc__] == []


NOTEBOOKS = sorted((HOUSE / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [pytest.param(f, marks=[pytest.mark.long] * (i % 2)) for i, f in enumerate(NOTEBOOKS)], ids=lambda f: f.stem
)
def test_notebooks_run_and_are_stored_without_output(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    book = json.loads(file.read_text(encoding="utf-8"))
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 3
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert any("Predict" in "".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "markdown")
    names = {}
    for cell in cells:
        exec("".join(cell["source"]), names)


def test_there_is_a_notebook_for_each_lecture():
    assert [file.stem[0] for file in NOTEBOOKS] == list("12345")
