"""Steps in a row on a run, an imported folder and a classifier: measured, recovered, and an ordinary run in the end."""

import json
import random
import subprocess
import sys

import pytest
import torch

import kinfolk as kf
from kinfolk.cli.compress import ABOUT
from kinfolk.cli.main import main
from kinfolk.core.errors import DataError, SpecError, TrainingError
from kinfolk.data import open_data
from kinfolk.family.supervise import judging
from kinfolk.layers.pruned import Pruned
from kinfolk.objectives.distil import Distil
from kinfolk.runs.fit import labelling_of
from kinfolk.runs.run import Run
from kinfolk.train import RunOptions
from kinfolk.train.run import train
from kinfolk.use.compress.measure import Measurement
from kinfolk.use.compress.opening import open_model
from kinfolk.use.compress.pipeline import CompressionWorkshop, compress, ordered, run_steps
from kinfolk.use.compress.steps import STEPS, CompressionStep, parse

TOY = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 32, "max_len": 64}
SHORT = {"steps": 2, "batch_size": 4, "length": 24, "eval_every": 0, "save_every": 0, "eval_batches": 2}
PLAIN = {"precision": "fp32", "compile": "off"}


def trained(name, source, out, **numbers):
    data = open_data(**source)
    recipe = kf.relative(name, size="tiny", **(TOY | numbers), vocab_size=data.tokenizer.vocab_size)
    recipe = judging(recipe.learning_from(data.kind), labelling_of(data))
    recipe = recipe.replace(training=recipe.training.replace(**SHORT, **PLAIN))
    train(recipe, data, out, options=RunOptions(quiet=True, tensorboard=False), source=source)
    return out


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compress")
    words = random.Random(0).choices(["one", "two", "three", "four", "five", "six"], k=3000)
    (folder / "text.txt").write_text(" ".join(words))
    rows = [f"{word} and {other},{int(word < other)}" for word, other in zip(words[:400], words[400:800], strict=True)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows]))
    return folder


@pytest.fixture(scope="module")
def run(place):
    source = {"name": str(place / "text.txt"), "cache": str(place / "cache")}
    return trained("gpt2", source, place / "run")


@pytest.fixture(scope="module")
def classifier(place):
    source = {"name": f"labelled:{place / 'rows.csv'}", "cache": str(place / "cache")}
    return trained("bert", source, place / "classifier")


def shop(run, work, **more):
    work.mkdir(exist_ok=True)
    return CompressionWorkshop(open_model(run), work, lambda line: None, n_batches=1, n_valid=1, **more)


def test_a_pipeline_leaves_an_ordinary_run(run, tmp_path):
    steps = ordered(parse("heads=0.5,rank=0.25,int8"), 2)
    assert [step.name for step in steps] == ["heads", "rank", "recover", "int8"]
    found = compress(shop(run, tmp_path / "work"), tmp_path / "out", steps)
    assert [one.step for one in found] == ["as trained", "heads=0.5", "rank=0.25", "recovered, 2 steps", "int8"]
    assert found[0].speed == 1.0
    assert found[0].worse(found[0]) == 0.0
    sizes = [one.bytes for one in found]
    assert sizes[0] > sizes[1] > sizes[2] == sizes[3] > sizes[4]
    assert all(one.memory > one.bytes for one in found)
    recipe, learner = Run.open(tmp_path / "out").recipe, Run.open(tmp_path / "out").learner()
    assert learner.model.n_params == found[-1].params
    assert recipe.objective == Run.open(run).recipe.objective
    told = json.loads((tmp_path / "out" / "compression.json").read_text())
    assert [row["step"] for row in told["steps"]] == [one.step for one in found]
    # kinds that no relative has are known to a process that has seen none of this
    command = [sys.executable, "-c", "import kinfolk as kf, sys; print(kf.load(sys.argv[1]).n_params)"]
    done = subprocess.run([*command, str(tmp_path / "out")], capture_output=True, text=True, check=True)
    assert int(done.stdout) == found[-1].params
    # again, from what was left
    again = compress(shop(tmp_path / "out", tmp_path / "more"), tmp_path / "again", parse("plain"))
    assert again[1].loss == pytest.approx(again[0].loss, rel=0.02)
    with pytest.raises(TrainingError, match=r"another run|exists"):
        compress(shop(run, tmp_path / "work"), tmp_path / "out", steps)


@pytest.mark.parametrize("method", ["movement", "magnitude"])
def test_weights_are_lost_while_learning(run, tmp_path, method):
    steps = ordered(parse(f"{method}=0.5"), 3)
    learner, found = run_steps(shop(run, tmp_path / "work"), steps)
    maps = [m.weight for m in learner.model.decoder.modules() if isinstance(m, torch.nn.Linear)]
    assert all(float((w == 0).float().mean()) == pytest.approx(0.5, abs=1e-3) for w in maps)
    assert learner.model.spec == Run.open(run).recipe.model
    assert found[-1].params == learner.model.n_params
    assert found[-1].zeros > 0.2
    with pytest.raises(SpecError, match="recover=N"):
        ordered(parse(f"{method}=0.5"), 0)
    assert not any(isinstance(part, Pruned) for block in learner.model.spec.decoder.blocks for part in block.parts)


def test_a_teacher_teaches_while_recovering(run, tmp_path):
    teaching = Distil(task=Run.open(run).recipe.objective, teacher="")
    taught, alone = (
        run_steps(
            shop(run, tmp_path / f"{i}", teaching=how), [CompressionStep("layers", 0.5), CompressionStep("recover", 2)]
        )
        for i, how in enumerate((teaching, None))
    )
    assert taught[1][-1].step == "recovered, 2 steps, taught"
    assert taught[1][0].loss == alone[1][0].loss
    assert taught[1][-1].loss != alone[1][-1].loss


def test_a_classifier_is_judged_by_its_accuracy(classifier, tmp_path):
    found = compress(shop(classifier, tmp_path / "work"), tmp_path / "out", parse("ff=0.5,share=2"))
    assert [one.quality[0] for one in found] == ["accuracy"] * 3
    assert found[1].params > found[2].params
    one = Measurement("a", 1, 1, 0.0, 0.7, {"class": 0.7, "accuracy": 0.8}, 1.0)
    other = Measurement("b", 1, 1, 0.0, 0.7, {"class": 0.9, "accuracy": 0.76}, 1.0)
    assert other.worse(one) == pytest.approx(0.05)
    loss, more = (Measurement("a", 1, 1, 0.0, x, {"next-token": x}, 1.0) for x in (2.0, 2.1))
    assert more.worse(loss) == pytest.approx(0.05)


def test_an_imported_folder_is_compressed_on_given_data(run, place, tmp_path):
    model = kf.load(run)
    kf.to_hf(model, tmp_path / "hf", tokenizer=run / "tokenizer.json")
    with pytest.raises(DataError, match="--data"):
        open_model(tmp_path / "hf")
    source = {"name": str(place / "text.txt"), "cache": str(place / "cache")}
    (tmp_path / "work").mkdir()
    opened = open_model(tmp_path / "hf", source, tmp_path / "work")
    mine = CompressionWorkshop(opened, tmp_path / "work", lambda line: None, n_batches=1, n_valid=1)
    found = compress(mine, tmp_path / "out", parse("ff=0.5,int8=weights"))
    assert found[-1].bytes < found[0].bytes
    assert Run.open(tmp_path / "out").learner().model.n_params == found[-1].params
    # what it was judged by can be opened again, with the tokenizer that it has now
    assert open_model(tmp_path / "out").data.fingerprint == opened.data.fingerprint


def test_a_folder_without_one_file_for_its_tokenizer(place, tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "four", "five", "six"]
    recipe = kf.relative("bert", size="tiny", **(TOY | {"max_len": 128}), vocab_size=16)
    kf.to_hf(kf.build(recipe, seed=1), tmp_path / "hf")
    (tmp_path / "hf" / "vocab.txt").write_text("\n".join(words))
    source = {"name": str(place / "text.txt"), "cache": str(tmp_path / "cache")}
    with pytest.raises(DataError, match="kin import"):
        open_model(tmp_path / "hf", source)
    opened = open_model(tmp_path / "hf", source, tmp_path)
    assert opened.words == tmp_path / "tokenizer.json"
    assert opened.data.tokenizer.encode("three") == [7]


def test_the_command_says_what_each_step_did(run, tmp_path, capsys):
    words = ["compress", str(run), "--steps", "heads=0.5", "--batches", "1", "--valid-batches", "1"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    out = capsys.readouterr().out
    assert "heads=0.5" in out
    assert "next-token" in out
    assert main([*words, "--out", str(tmp_path / "b"), "--json"]) == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == ["as trained", "heads=0.5"]
    assert main([*words, "--out", str(tmp_path / "c"), "--distil"]) != 0
    assert "--recover" in capsys.readouterr().err
    assert list(tmp_path.glob(".*.work")) == []


def test_help_knows_every_step():
    assert list(ABOUT) == list(STEPS)
