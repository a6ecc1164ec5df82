"""`kin runs`: what is listed, and that damaged folders are listed too."""

import json

import kinfolk as kf
from kinfolk.cli.main import main


def listed(capsys, folder):
    assert main(["runs", str(folder), "--json"]) == 0
    return {row["path"].removeprefix(f"{folder}/"): row for row in json.loads(capsys.readouterr().out)}


def test_every_kind_of_folder_is_listed(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 400)
    runs = tmp_path / "runs"
    few = ["--set", "training.eval_batches=1"]
    train = ["train", "gpt2", "--data", str(text), "--steps", "2", "--out", str(runs / "deep" / "first"), *few]
    assert main(train) == 0
    kf.save(kf.build(kf.relative("bert", size="tiny", n_layers=1)), runs / "model")
    capsys.readouterr()
    (runs / "compared").mkdir()
    rows = [{"name": "alibi", "measure": "next-token", "final": 2.5}, {"name": "gpt2", "final": 2.6}]
    (runs / "compared" / "results.json").write_text(json.dumps({"title": "t", "rows": rows}))
    (runs / "stopped" / "trials" / "gpt2-seed0-abc").mkdir(parents=True)
    (runs / "stopped" / "layout.json").write_text("{}")
    (runs / "theirs").mkdir()
    (runs / "theirs" / "config.json").write_text('{"model_type": "llama"}')
    found = listed(capsys, runs)
    assert {name: row["what"] for name, row in found.items()} == {
        "compared": "comparison",
        "deep/first": "run",
        "model": "model",
        "stopped": "unfinished comparison",
        "theirs": "Hugging Face folder",
    }
    assert found["compared"]["score"] == "alibi: next-token 2.5"
    assert found["deep/first"]["of"].startswith("gpt2 on ")
    assert found["deep/first"]["score"]
    assert found["deep/first"]["bytes"] > 1000
    assert found["theirs"]["of"] == "llama"
    assert main(["runs", str(runs)]) == 0
    assert "unfinished comparison" in capsys.readouterr().out


def test_damaged_files_are_no_reason_to_stop(tmp_path, capsys):
    for name, text in (("a", "[["), ("b", "\0"), ("c", "{" * 100_000), ("d", "[1]")):
        (tmp_path / name).mkdir()
        for file in ("results.json",) if name in "ad" else ("run.toml", "result.json", "spec.toml"):
            (tmp_path / name / file).write_text(text)
    assert len(listed(capsys, tmp_path)) == 4


def test_links_are_not_followed_and_a_missing_folder_is_named(tmp_path, capsys):
    (tmp_path / "loop").symlink_to(tmp_path)
    assert listed(capsys, tmp_path) == {}
    assert main(["runs", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_table_wider_than_the_terminal_is_folded(tmp_path, capsys, monkeypatch):
    for name in ("a" * 40, "b" * 40):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.toml").write_text('[data]\nname = "some-long-name-of-a-data-set.txt"\n')
        (tmp_path / name / "spec.toml").write_text('name = "gpt2+rotary+rms-norm"\n')
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
