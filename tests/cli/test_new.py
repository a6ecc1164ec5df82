"""Files that `kin new` writes run as they are."""

import subprocess
import sys

import pytest

from kinfolk.cli.main import main
from kinfolk.cli.new import TEMPLATES
from tests.forked import kin

SMALL = [f"--set=training.{what}" for what in ("batch_size=2", "length=32", "eval_batches=1")]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "relative"), [("relative", "my-own"), ("operator", "my-own-gpt2")])
def test_the_file_is_a_plugin_that_trains_and_generates(what, relative, tmp_path):
    assert kin(tmp_path, "new", what, "my-own").returncode == 0
    plugin = ["--plugin", "my_own.py"]
    train = ["train", relative, "--data", "stdlib:megabytes=1", "--steps", "2", "--out", "run", *SMALL, *plugin]
    done = kin(tmp_path, *train)
    assert done.returncode == 0, done.stderr
    done = kin(tmp_path, "generate", "run", "--prompt", "def ", "--max-new", "3", "--greedy", *plugin)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_task_trains_evaluates_and_predicts(tmp_path):
    assert kin(tmp_path, "new", "task", "my-own").returncode == 0
    rows = "".join(f"it is {word} {n},{label}\n" for n in range(20) for word, label in (("good", "yes"), ("bad", "no")))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    plugin, data = ["--plugin", "my_own.py"], "labelled:task=my-own:rows.csv"
    train = kin(tmp_path, "train", "bert", "--data", data, "--steps", "3", "--out", "run", *plugin)
    assert train.returncode == 0, train.stderr
    scores = kin(tmp_path, "eval", "run", "--json", *plugin)
    assert scores.returncode == 0, scores.stderr
    assert "my-own-probability" in scores.stdout
    done = kin(tmp_path, "predict", "run", "--input", "rows.csv", "--json", *plugin)
    assert done.returncode == 0, done.stderr
    assert '"label"' in done.stdout


def test_the_operator_equals_its_reference(tmp_path):
    assert main(["new", "operator", "decay", "--out", str(tmp_path / "decay.py")]) == 0
    done = subprocess.run([sys.executable, str(tmp_path / "decay.py")], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("equal to the reference\n", 0), done.stderr


@pytest.mark.parametrize("what", sorted(TEMPLATES))
def test_nothing_is_overwritten(what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("kept")
    assert main(["new", what, "mine"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "mine.py").read_text() == "kept"


@pytest.mark.parametrize("name", ["My", "../x", "a b", "a--b", "class", "x'"])
def test_a_name_that_is_none_is_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "relative", name]) == 2
    assert "lower case with hyphens" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
