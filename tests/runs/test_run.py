"""`Run.open` answers the same questions about every layout of a trained model."""

from pathlib import Path

import pytest
import torch

import kinfolk as kf
from kinfolk.core.errors import CheckpointError, DataError, SpecError
from kinfolk.core.generation_ids import GenerationIds
from kinfolk.data import Tokenizer
from kinfolk.runs.huggingface.run import HuggingFaceRun
from kinfolk.runs.metadata import Metadata, Plugin
from kinfolk.runs.options import RunOptions
from kinfolk.runs.run import Run, SavedModel, TrainedRun
from kinfolk.train import train

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "max_len": 32, "vocab_size": 263}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from kinfolk.data import open_data

    out = tmp_path_factory.mktemp("trained") / "run"
    recipe = kf.relative("gpt2", **TINY).assigned(["training.steps=2", "training.length=8", "training.batch_size=2"])
    train(recipe, open_data("copy:length=4"), out, options=RunOptions(threads=1, quiet=True, tensorboard=False))
    return out


@pytest.fixture(scope="module")
def folders(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[type[Run], Path]:
    place = tmp_path_factory.mktemp("layouts")
    model = kf.load(trained)
    kf.save(model, place / "saved", trained / "tokenizer.json")
    kf.to_hf(model, place / "hf", tokenizer=trained / "tokenizer.json")
    return {TrainedRun: trained, SavedModel: place / "saved", HuggingFaceRun: place / "hf"}


@pytest.mark.parametrize("layout", [TrainedRun, SavedModel, HuggingFaceRun])
def test_every_layout_gives_the_same_answers(layout: type[Run], folders: dict[type[Run], Path]) -> None:
    run, first = Run.open(folders[layout]), Run.open(folders[TrainedRun])
    assert type(run) is layout
    assert Run.open(run) is run
    assert run.recipe.model == first.recipe.model
    assert run.tokenizer.encode("abc") == first.tokenizer.encode("abc")
    assert (run.start_id, run.stop_ids, run.pad_id, run.limit) == (1, (2,), 0, 32)
    assert (run.task.kind, run.classes) == ("lm", ())
    tokens = torch.randint(7, 263, (2, 6))
    for model in (run.model(), run.learner().model):
        torch.testing.assert_close(model.eval()(tokens).logits, first.model().eval()(tokens).logits)
    engine = kf.Run.open(run).engine()
    texts = [kf.generate(model, [9, 8], max_new=5, greedy=True) for model in (engine, first.model())]
    assert texts[0] == texts[1]
    assert run.weights().keys() == first.weights().keys()


def test_models_of_one_run_are_independent(folders: dict[type[Run], Path]) -> None:
    for path in folders.values():
        run = Run.open(path)
        one, other = run.model(), run.model()
        with torch.no_grad():
            next(one.parameters()).zero_()
        assert next(other.parameters()).any()


def test_a_run_opens_its_own_data_and_other_data_with_its_tokenizer(
    folders: dict[type[Run], Path], tmp_path: Path
) -> None:
    run = Run.open(folders[TrainedRun])
    assert run.data().name == "copy:length=4"
    (tmp_path / "text.txt").write_text("abcd" * 200)
    given = {"name": str(tmp_path / "text.txt"), "cache": str(tmp_path / "cache")}
    assert run.data(given).tokenizer.agrees(run.tokenizer)
    with pytest.raises(DataError, match="was prepared with another tokenizer"):
        run.data(given | {"tokenizer": "char"})
    with pytest.raises(DataError, match="has no data of its own"):
        Run.open(folders[SavedModel]).data()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none of run\.toml, onnx\.json, spec\.toml, config\.json is here"):
        Run.open(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        Run.open(tmp_path / "none")


def test_an_unknown_engine_is_refused_with_the_nearest(trained: Path) -> None:
    with pytest.raises(SpecError, match="engine: unknown 'torhc'; did you mean 'torch'"):
        kf.Run.open(trained).engine("torhc")


def test_metadata_of_earlier_versions_is_read(tmp_path: Path) -> None:
    text = 'seed = 7\nkind = "text"\nplugins = ["mine.py"]\n[choice]\nprecision = "fp32"\ncompile = "off"\n'
    (tmp_path / "run.toml").write_text(text + "[choice.measured]\nfp32 = 0.5\n[data]\nname = 'copy'\n")
    known = Metadata.read(tmp_path)
    assert (known.seed, known.data_kind, known.plugins) == (7, "text", (Plugin(path="mine.py"),))
    assert (known.choice.precision, known.data.name) == ("fp32", "copy")
    (tmp_path / "run.toml").write_text(known.text())
    assert Metadata.read(tmp_path) == known


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("sede = 1", r"run\.toml\.sede: unknown key; did you mean 'seed'"),
        ("seed = 'a'", r"run\.toml\.seed: expected int"),
        ("seed = 99999999999999999999999", "seed: .*is not allowed"),
        ("[choice]\nprecision = 'fp8'", r"choice\.precision: unknown 'fp8'"),
    ],
)
def test_metadata_that_cannot_be_is_refused(text: str, match: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(CheckpointError, match=match):
        Metadata.read(tmp_path)


def test_a_large_seed_and_special_tokens_survive(tmp_path: Path) -> None:
    known = Metadata(seed=2**63 - 1, generation=GenerationIds(start_id=5, stop_ids=(6, 7)))
    (tmp_path / "run.toml").write_text(known.text())
    assert Metadata.read(tmp_path) == known
    assert Tokenizer.byte().generation != known.generation
