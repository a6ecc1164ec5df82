"""`kin diff A B`: relatives, files and folders against one another."""

import json

import pytest

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.plain import dumps


def test_two_relatives(capsys):
    assert main(["diff", "gpt", "gpt2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gpt → gpt2"
    assert "model.decoder.norm                none → layer-norm" in lines
    assert not [line for line in lines if line.startswith("name ")]


def test_as_data(capsys):
    assert main(["diff", "gpt", "gpt2", "--json"]) == 0
    found = {item["path"]: (item["a"], item["b"]) for item in json.loads(capsys.readouterr().out)}
    assert found["model.decoder.norm"] == ({"kind": "none"}, {"kind": "layer-norm", "eps": 1e-5, "bias": True})


def test_the_same_twice(capsys):
    assert main(["diff", "gpt", "gpt"]) == 0
    assert capsys.readouterr().out == "gpt and gpt are the same\n"
    assert main(["diff", "gpt", "gpt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_file_a_run_and_a_saved_model(tmp_path, capsys):
    recipe = kf.relative("gpt2", size="tiny")
    file, run, saved = tmp_path / "mine.toml", tmp_path / "run", tmp_path / "saved"
    file.write_text(dumps(recipe))
    run.mkdir()
    (run / "spec.toml").write_text(dumps(recipe.replace(training=recipe.training.replace(steps=7))))
    kf.save(kf.build(kf.relative("gpt2", size="tiny", n_heads=2)), saved)
    assert main(["diff", "gpt2", str(file)]) == 0
    assert "are the same" in capsys.readouterr().out
    assert main(["diff", str(file), str(run)]) == 0
    assert capsys.readouterr().out.endswith("training.steps  400 → 7\n")
    assert main(["diff", str(run), str(saved)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["decoder.blocks[*].parts[0].n_heads  4 → 2"]


@pytest.mark.parametrize(
    ("what", "text", "message"),
    [
        ("gpt3", None, "unknown relative 'gpt3'; did you mean 'gpt"),
        ("absent.toml", None, "there is no such file"),
        ("bad.toml", "x = ", "bad.toml: not valid TOML"),
        ("odd.toml", "colour = 3", "colour: unknown key"),
    ],
)
def test_what_cannot_be_read_is_named(what, text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / what).write_text(text)
    assert main(["diff", "gpt2", what]) == 2
    assert message in capsys.readouterr().err
