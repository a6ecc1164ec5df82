"""`kin compress` from a run to a smaller run that everything else takes."""

import json

import pytest

from kinfolk.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compress")
    (folder / "text.txt").write_text("a quick brown fox jumps over a lazy dog\n" * 300)
    words = f"train gpt2 --data {folder / 'text.txt'} --steps 30 --out {folder / 'run'} --cache {folder / 'cache'}"
    sizes = "--set d_model=32 --set n_heads=4 --set d_ff=64 --set training.length=16 --set training.batch_size=4"
    assert main.main([*words.split(), *sizes.split()]) == 0
    return folder


def test_cuts_measures_and_leaves_a_run(run, capsys):
    words = ["compress", str(run / "run"), "--steps", "heads=0.5,ff=0.5,layers=0.5", "--out", str(run / "small")]
    assert main.main([*words, "--batches", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in found] == ["as trained", "heads=0.5", "ff=0.5", "layers=0.5"]
    sizes = [row["params"] for row in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 0.8 * sizes[0]
    assert json.loads((run / "small" / "compression.json").read_text())["steps"] == found
    assert main.main(["eval", str(run / "small"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["measures"]["next-token"]["mean"] == pytest.approx(
        found[-1]["loss"], rel=0.2
    )
    assert main.main(["generate", str(run / "small"), "--prompt", "a", "--max-new", "4", "--greedy"]) == 0


@pytest.mark.parametrize("distil", [False, True])
def test_recovers_what_was_lost(run, capsys, distil):
    out = run / f"recovered-{distil}"
    words = ["compress", str(run / "run"), "--steps", "heads=0.75,ff=0.75", "--out", str(out), "--recover", "40"]
    assert main.main([*words, "--batches", "2", "--json", *(["--distil"] if distil else [])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[-1]["params"] == found[-2]["params"]
    assert found[-1]["loss"] < found[-2]["loss"]


def test_refuses_before_it_starts(run, capsys):
    whole = str(run / "run")
    for words in (["--steps", "hats=0.5"], ["--steps", "heads=0.5", "--distil"]):
        assert main.main(["compress", whole, *words, "--out", str(run / "never")]) == 2
        assert not (run / "never").exists()
    assert main.main(["compress", whole, "--steps", "heads=0.5", "--out", whole]) != 0
    assert "choose another --out" in capsys.readouterr().err


def test_exchanged_maps_are_taken_by_every_verb_and_plain_ones_by_others(run, capsys):
    thin, whole = run / "thin", run / "plain"
    words = ["compress", str(run / "run"), "--steps", "rank=0.25,int8", "--out", str(thin), "--batches", "2"]
    assert main.main(words) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("rank=0.25", "int8", "memory", "speed"))
    assert main.main(["eval", str(thin), "--json", "--batches", "2"]) == 0
    before = json.loads(capsys.readouterr().out)["measures"]["next-token"]["mean"]
    assert main.main(["generate", str(thin), "--prompt", "a", "--max-new", "4", "--greedy"]) == 0
    assert main.main(["inspect", str(thin), "--text", "a lazy fox", "--out", str(run / "thin.html")]) == 0
    assert main.main(["export", str(thin), "--to", "hf", "--out", str(run / "hf")]) != 0
    assert "decoder.blocks[0].parts[0] is Int8" in capsys.readouterr().err
    assert main.main(["compress", str(thin), "--steps", "plain", "--out", str(whole), "--batches", "2"]) == 0
    assert main.main(["export", str(whole), "--to", "hf", "--out", str(run / "hf")]) == 0
    capsys.readouterr()
    assert main.main(["eval", str(whole), "--json", "--batches", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["measures"]["next-token"]["mean"] == pytest.approx(before, rel=0.02)


def test_a_student_of_another_size_is_taught(run, capsys):
    words = ["compress", str(run / "run"), "--student", "gpt2", "--student-set", "n_layers=1", "--recover", "10"]
    assert main.main([*words, "--distil", "tinybert", "--out", str(run / "student"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in found] == ["as trained", "student", "recovered, 10 steps, taught"]
    assert found[1]["params"] < found[0]["params"]
