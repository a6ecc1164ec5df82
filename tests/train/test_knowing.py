"""A run that was told facts: from the command line, and again without the file."""

import json

import pytest

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.data import Tokenizer
from kinfolk.family.knowing import informed
from kinfolk.objectives.knowledge import attentions
from kinfolk.runs.knowledge import fitted, known_by
from kinfolk.runs.run import Run
from kinfolk.train.run import resume

SMALL = ("n_layers=1", "d_model=16", "n_heads=2", "d_ff=16", "training.batch_size=8")


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setenv("KINFOLK_CACHE", str(tmp_path / "cache"))
    rows = [f"{name} is here,{kind}" for name, kind in (("Ada", "a"), ("Bo", "b"), ("Cy", "a"))] * 20
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    (tmp_path / "facts.tsv").write_text("Ada\tis\ta\nBo\tis\tb\n")
    words = ["train", "k-bert", "--data", f"labelled:{tmp_path / 'rows.csv'}", "--steps", "2", "--quiet", "--json"]
    words += [word for setting in SMALL for word in ("--set", setting)]
    return [*words, "--knowledge", str(tmp_path / "facts.tsv"), "--out", str(tmp_path / "run")]


def test_a_run_keeps_what_it_was_told(command, tmp_path, capsys):
    assert main(command) == 0
    capsys.readouterr()
    (tmp_path / "facts.tsv").unlink()
    recipe, learner = Run.open(tmp_path / "run").recipe, Run.open(tmp_path / "run").learner()
    assert recipe.knowledge.file == str(tmp_path / "run" / "knowledge.tsv")
    assert len(learner.vocabulary.known.names.known) == 2
    assert main(["eval", str(tmp_path / "run"), "--json"]) == 0
    assert "accuracy" in json.dumps(json.loads(capsys.readouterr().out))
    assert resume(tmp_path / "run").status == "finished"


def test_what_cannot_be_read_or_told_is_refused_before_there_is_a_run(command, tmp_path, capsys):
    facts = tmp_path / "facts.tsv"

    def refused(words):
        assert main(words) == 2
        return capsys.readouterr().err

    facts.write_text("Ada\tis\n")
    assert "facts.tsv:1: has 2 columns" in refused(command)
    facts.unlink()
    assert "facts.tsv: no such file" in refused(command)
    assert "encoder of blocks" in refused(["train", "gpt2", *command[2:]])
    assert not (tmp_path / "run").exists()


def test_a_model_gets_a_vector_for_each_entity(tmp_path):
    file = tmp_path / "entities.tsv"
    file.write_text("Ada\tperson\t3\nAda\tlanguage\t1\nBo\ttree\n")
    recipe = informed(kf.relative("knowbert", size="tiny", d_model=16, n_heads=2, n_layers=1), str(file))
    recipe = recipe.fitted(Tokenizer.byte().vocab_size)
    assert [part.n_entities for _, part in attentions(fitted(recipe).model)] == [3]
    lexicon = known_by(fitted(recipe), Tokenizer.byte())
    assert lexicon.entities == ("person", "language", "tree")
    few = kf.relative("knowbert", size="tiny", n_entities=2, **{"knowledge.file": str(file)})
    with pytest.raises(kf.KinfolkError, match=r"parts\[0\]\.n_entities: 2 is less than the 3 of .*entities\.tsv"):
        known_by(few, Tokenizer.byte())
