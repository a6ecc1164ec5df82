"""A user's own file registers what it defines, and an error in it is one line that names its place."""

import os
import subprocess
import sys

import pytest

from kinfolk.core import plugins
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import from_plain
from kinfolk.core.spec import Spec


class Colour(Spec):
    """Axis that a plugin extends."""


class Grey(Colour, kind="grey"):
    """The choice that is there without a plugin."""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, "")


def write(folder, text, name="mine.py"):
    file = folder / name
    file.write_text(text)
    return file


def test_a_kind_registers_and_the_file_is_imported_once(tmp_path):
    text = f"""
import sys
Colour = sys.modules[{__name__!r}].Colour
class Red(Colour, kind="red"):
    depth: int = 3
runs = []
"""
    module = plugins.load_plugin(write(tmp_path, text))
    assert from_plain(Colour, {"kind": "red"}) == module.Red(depth=3)
    module.runs.append("kept")
    assert plugins.load_plugin(tmp_path / "mine.py").runs == ["kept"]
    assert module.__name__.startswith("_kinfolk_plugin_mine_")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise ValueError('no good')\n", r"mine\.py:2: ValueError: no good$"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"mine\.py:2: ZeroDivisionError: division by zero$"),
        ("x = (\n", r"mine\.py:1: SyntaxError: '\(' was never closed$"),
        ("import kinfolk_nonsense\n", r"mine\.py:1: ModuleNotFoundError: No module named 'kinfolk_nonsense'$"),
        ("raise KeyError\n", r"mine\.py:1: KeyError$"),
        (
            "from kinfolk.core.errors import SpecError\nraise SpecError('kind is taken')\n",
            r"mine\.py:2: kind is taken$",
        ),
    ],
)
def test_an_error_inside_is_one_line_with_file_and_line(tmp_path, text, message):
    with pytest.raises(SpecError, match=message) as caught:
        plugins.load_plugin(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert not [name for name in sys.modules if name.startswith("_kinfolk_plugin_mine") and text in name]
    assert os.environ[plugins.VARIABLE] == ""


def test_a_file_that_failed_can_be_mended_and_loaded(tmp_path):
    with pytest.raises(SpecError, match="NameError"):
        plugins.load_plugin(write(tmp_path, "colour = grey_\n"))
    assert plugins.load_plugin(write(tmp_path, "colour = 'a longer grey'\n")).colour == "a longer grey"


def test_a_missing_or_odd_file_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"plugin .*absent\.py: there is no such file"):
        plugins.load_plugin(tmp_path / "absent.py")
    with pytest.raises(SpecError, match=r"expected a Python file"):
        plugins.load_plugin(write(tmp_path, "x = 1", "mine.txt"))


def test_a_child_process_inherits_the_plugins(tmp_path):
    plugins.load_plugin(write(tmp_path, "print('here', __name__[:20])\n"))
    code = "from kinfolk.core import plugins; plugins.load_inherited()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "here _kinfolk_plugin_mine\n"
