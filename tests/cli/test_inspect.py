"""`kin inspect` from a run to a page."""

import json

import pytest

from kinfolk.cli import main

TREES = "1\ta\t_\tX\t_\t_\t2\tdet\t_\t_\n2\tb\t_\tX\t_\t_\t0\troot\t_\t_\n3\tc\t_\tX\t_\t_\t2\tobj\t_\t_\n\n" * 6


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "text.txt").write_text("a quick brown fox jumps over a lazy dog\n" * 200)
    words = f"train gpt2 --data {folder / 'text.txt'} --steps 2 --out {folder / 'run'} --cache {folder / 'cache'}"
    sizes = "--set d_model=32 --set n_heads=2 --set d_ff=64 --set training.length=16 --set training.batch_size=4"
    assert main.main([*words.split(), *sizes.split()]) == 0
    return folder


def test_writes_a_page(run, capsys):
    page = run / "page.html"
    assert main.main(["inspect", str(run / "run"), "--text", "a lazy fox", "--out", str(page)]) == 0
    assert f"page: {page}" in capsys.readouterr().out
    assert page.read_text().startswith("<!doctype html>")


def test_prints_numbers_of_heads_their_worth_and_relations(run, capsys):
    (run / "trees.conllu").write_text(TREES)
    words = ["--text", "a fox", "--remove", "--batches", "1", "--conllu", str(run / "trees.conllu"), "--json"]
    assert main.main(["inspect", str(run / "run"), *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["maps"]) == 2
    assert len(found["maps"][0]["habits"]) == 2
    assert {r["relation"] for r in found["relations"]} == {"det", "obj"}
    assert sum(len(w["rises"]) for w in found["worth"].values()) == 4
    assert found["loss"] > 0


def test_what_is_missing_is_named(run, capsys):
    assert main.main(["inspect", str(run / "nowhere"), "--text", "a"]) != 0
    assert "nowhere" in capsys.readouterr().err
    assert main.main(["inspect", str(run / "run"), "--file", str(run / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err


def test_says_what_is_near_a_word(run, capsys):
    words = ["inspect", str(run / "run"), "--file", str(run / "text.txt"), "--word", "fox"]
    assert main.main([*words, "--out", str(run / "near.html")]) == 0
    out = capsys.readouterr().out
    assert "near 'fox' in the table" in out
    assert "[fox]" in out
    assert main.main([*words, "--json", "--layer", "0"]) == 0
    found = json.loads(capsys.readouterr().out)["neighbours"]
    assert found["layer"] == "decoder.0"
    assert found["contextual"]
