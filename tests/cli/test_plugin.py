"""The file that CONTRIBUTING.md shows, used from the command line as it says there."""

import json
import re
from pathlib import Path

import pytest

from tests.forked import kin

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    shown = re.search(r"^```python\n# my\.py\n(.*?)^```$", CONTRIBUTING, re.DOTALL | re.MULTILINE)
    (tmp_path / "my.py").write_text(shown[1])
    return tmp_path


def test_a_plugin_joins_the_tree(folder):
    done = kin(folder, "family", "--plugin", "my.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^[│ ]+[├└]─ my-gpt2 \(2019\)  norms divide by the root mean square", done.stdout, re.MULTILINE)


def test_a_plugin_is_explained_like_any_other(folder):
    done = kin(folder, "family", "my-gpt2", "--plugin", "my.py", "--json")
    found = json.loads(done.stdout)
    assert found["lineage"] == ["vanilla", "gpt", "gpt2", "my-gpt2"]
    assert [change["path"] for change in found["differences"]] == [
        "model.decoder.blocks[*].residual.norm",
        "model.decoder.norm",
    ]
    assert "class MyNorm" not in (source := kin(folder, "family", "my-gpt2", "--plugin", "my.py", "--source").stdout)
    assert "def my_gpt2" in source


def test_without_the_plugin_its_names_are_unknown(folder):
    assert "layer-norm → my-norm" in kin(folder, "diff", "gpt2", "my-gpt2", "--plugin", "my.py").stdout
    done = kin(folder, "diff", "gpt2", "my-gpt2")
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown relative 'my-gpt2'; did you mean 'gpt2'?" in done.stderr


@pytest.mark.slow
def test_a_plugin_is_trained(folder):
    argv = ["train", "my-gpt2", "--data", "copy", "--size", "tiny", "--steps", "3", "--out", "run", "--plugin", "my.py"]
    done = kin(folder, *argv)
    assert done.returncode == 0, done.stderr
    assert 'kind = "my-norm"' in (folder / "run" / "spec.toml").read_text()
