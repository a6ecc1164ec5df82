"""The tree read from source text, and the registry of the running program."""

import subprocess
import sys

import pytest

from kinfolk.core.errors import SpecError
from kinfolk.family import catalogue, registry
from kinfolk.family.about import About

BRANCH = '''
from kinfolk.family.registry import relative

@relative(
    "old", parent=None, year=2017, paper="One 2017", topology="encoder-decoder", causal=True,
    changes="every" "thing",
)
def old():
    """The first."""
    return 1

def between(): ...

@registry.relative("young", parent="old", year=2019, paper="Two", topology="decoder", causal=True, changes="half")
def young(): ...
'''


def about(name, parent=None, year=2017, **changes):
    fields = {"paper": "P", "topology": "decoder", "causal": True, "input": "tokens", "changes": "c"} | changes
    return About(name=name, parent=parent, year=year, **fields)


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_entries", {})


def test_relatives_are_read_from_text(tmp_path):
    file = tmp_path / "branch.py"
    file.write_text(BRANCH)
    found = catalogue.scan([file])
    assert list(found) == ["old", "young"]
    assert found["old"] == about("old", paper="One 2017", topology="encoder-decoder", changes="everything")
    assert (found["young"].parent, found["young"].topology, found["young"].year) == ("old", "decoder", 2019)


def test_the_source_of_a_relative_begins_at_its_decorator(tmp_path):
    file = tmp_path / "branch.py"
    file.write_text(BRANCH)
    listed = catalogue.read([file])["old"]
    assert listed.line == 4
    assert listed.source.startswith('@relative(\n    "old"')
    assert listed.source.endswith("return 1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BRANCH.replace("year=2019", "year=THEN"), r"branch\.py:14: year of a relative must be written out as a lit"),
        (BRANCH.replace("year=2019, ", ""), "young.year: is missing, and paper 'Two' names none"),
        (BRANCH.replace('paper="Two", ', ""), r"branch\.py:14: @relative: .*missing .* 'paper'"),
        (
            BRANCH.replace('"young", parent="old"', '"old", parent=None'),
            r"branch\.py:14: relative 'old' is already defined",
        ),
        (BRANCH.replace('"decoder"', '"decodr"'), r"young\.topology: unknown 'decodr'; did you mean 'decoder'"),
        (BRANCH + "\n(", r"branch\.py:17: not valid Python"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, text, message):
    file = tmp_path / "branch.py"
    file.write_text(text)
    with pytest.raises(SpecError, match=message):
        catalogue.scan([file])


def test_children_are_oldest_first_and_a_lineage_starts_at_the_root():
    family = {
        "b": about("b", "a", 2020),
        "c": about("c", "a", 2018),
        "a": about("a"),
        "d": about("d", "c", 2021),
    }
    assert [child.name for child in catalogue.children(family)["a"]] == ["c", "b"]
    assert [root.name for root in catalogue.children(family)[None]] == ["a"]
    assert [step.name for step in catalogue.lineage("d", family)] == ["a", "c", "d"]


def test_a_missing_parent_and_a_ring_are_refused():
    with pytest.raises(SpecError, match=r"b\.parent: unknown relative 'aa'; did you mean 'aaa'"):
        catalogue.children({"aaa": about("aaa"), "b": about("b", "aa")})
    with pytest.raises(SpecError, match=r"its line of parents comes back to"):
        catalogue.lineage("a", {"a": about("a", "b"), "b": about("b", "a")})
    with pytest.raises(SpecError, match=r"its own parent"):
        about("a", "a")
    with pytest.raises(SpecError, match=r"one line"):
        about("a", changes="two\nlines")


def test_the_catalogue_and_the_registry_agree():
    registry.load()
    own = {n: e for n, e in registry.entries().items() if e.function.__module__.startswith("kinfolk.")}
    assert catalogue.scan() == {name: entry.about for name, entry in own.items()}
    assert {n: e.function.__code__.co_firstlineno for n, e in own.items()} == {
        name: listed.line for name, listed in catalogue.read().items()
    }


def test_a_name_is_entered_once(own_registry):
    def first(): ...

    def second(): ...

    registry.register(about("a"), first)
    registry.register(about("a"), first)
    with pytest.raises(SpecError, match=r"relative 'a' is already defined by .*first"):
        registry.register(about("a"), second)
    assert registry.entries()["a"].function is first


def test_an_unknown_name_gets_the_nearest_match(own_registry):
    registry.register(about("performer"), lambda: None)
    with pytest.raises(SpecError, match=r"unknown relative 'perfomer'; did you mean 'performer'"):
        registry.about("perfomer")
    assert registry.about("performer").name == "performer"
    assert "performer" in registry.relatives()


def test_drawing_the_tree_imports_no_torch():
    code = "import sys; from kinfolk.family import catalogue; catalogue.scan(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_topology_and_direction_are_the_parents_unless_given(tmp_path, own_registry):
    text = BRANCH.replace(' topology="decoder", causal=True,', "")
    file = tmp_path / "branch.py"
    file.write_text(text)
    assert text != BRANCH
    listed = catalogue.scan([file])
    assert (listed["young"].topology, listed["young"].causal) == (listed["old"].topology, listed["old"].causal)
    scope = {}
    exec(
        compile(
            "from kinfolk.family import registry\nfrom kinfolk.family.registry import relative\n" + text, "b", "exec"
        ),
        scope,
    )
    assert {name: entry.about for name, entry in registry.entries().items()} == listed
    with pytest.raises(SpecError, match="topology and causal must be given, since parent 'nobody' is not defined"):
        registry.relative("orphan", parent="nobody", paper="P 2020", changes="c")
