"""The public functions, on every layout of a folder and through the command line: one answer."""

import json
from pathlib import Path

import numpy as np
import pytest

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.data import open_data
from kinfolk.train.finetune.recipe import Effort

TINY = [f"{name}={value}" for name, value in {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32}.items()]
SHORT = ["training.steps=3", "training.batch_size=4", "training.eval_every=3", "training.save_every=3"]
SHORT += ["training.precision=fp32", "model.max_len=64"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One trained classifier and one language model as run, as saved model and for Hugging Face."""
    place = tmp_path_factory.mktemp("functions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINFOLK_CACHE", str(place / "cache"))
        lines = ["text,label"] + [f"{word} {i},{word}" for i in range(20) for word in ("good", "bad")]
        (place / "labels.csv").write_text("\n".join(lines) + "\n")
        (place / "text.txt").write_text("some words to read, again and again.\n" * 60)
        judge = kf.train("bert", f"labelled:{place / 'labels.csv'}", out=place / "judge", assignments=[*TINY, *SHORT])
        lm = kf.train(
            "gpt2", str(place / "text.txt"), out=place / "lm", assignments=[*TINY, *SHORT, "training.length=16"]
        )
        for run in (judge, lm):
            kf.save(run.model(), place / f"{run.name}-saved", run.path / "tokenizer.json")
            assert main(["export", str(run.path), "--to", "hf", "--out", str(place / f"{run.name}-hf")]) == 0
    names = ["labels.csv", "text.txt", *(f"{n}{s}" for n in ("judge", "lm") for s in ("", "-saved", "-hf"))]
    return {name: place / name for name in names} | {"cache": place / "cache"}


@pytest.fixture(autouse=True)
def cache(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFOLK_CACHE", str(folders["cache"]))


def test_a_recipe_is_fitted_to_data_in_one_place(folders: dict[str, Path]) -> None:
    data = open_data(f"labelled:{folders['labels.csv']}")
    recipe = kf.fit("bert", data, assignments=TINY)
    assert (recipe.model.vocab_size, recipe.model.head.n_classes) == (data.tokenizer.vocab_size, 2)
    assert kf.fit(recipe, data) == recipe
    assert kf.Run.open(folders["judge"]).recipe.model.head == recipe.model.head


@pytest.mark.parametrize("layout", ["", "-saved", "-hf"])
def test_every_function_works_on_every_layout(layout: str, folders: dict[str, Path], tmp_path: Path) -> None:
    judge, lm = folders[f"judge{layout}"], folders[f"lm{layout}"]
    labels, text = folders["labels.csv"], folders["text.txt"]
    texts = ["good 3", "bad 4"]
    first = kf.predict(folders["judge"], texts)
    said = kf.predict(judge, texts)
    scores = [list(row["probabilities"].values()) for row in said]
    np.testing.assert_allclose(scores, [list(row["probabilities"].values()) for row in first], atol=1e-5)
    np.testing.assert_allclose(kf.embed(lm, texts), kf.embed(folders["lm"], texts), atol=1e-5)
    one, own = kf.evaluate(lm, str(text)), kf.evaluate(folders["lm"], str(text))
    # a saved model has no training of its own, so that other lengths are read
    assert one["next-token"] == pytest.approx(own["next-token"], abs=0.5)
    tuned = kf.finetune(lm, train=labels, out=tmp_path / "tuned", effort=Effort(steps=1))
    assert tuned.classes == ("bad", "good")
    assert kf.generate(kf.load(lm), [10, 11], max_new=3, greedy=True)[:2] == [10, 11]


def written(capsys: pytest.CaptureFixture[str], run: Path, engine: str = "torch") -> list[int]:
    words = ["--prompt", "some", "--greedy", "--max-new", "5", "--engine", engine, "--json"]
    assert main(["generate", str(run), *words]) == 0
    ids: list[int] = json.loads(capsys.readouterr().out)["ids"]
    return ids


@pytest.mark.parametrize("layout", ["-saved", "-hf"])
def test_every_layout_generates_the_same_text(
    layout: str, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(capsys, folders[f"lm{layout}"]) == written(capsys, folders["lm"])


@pytest.mark.slow
def test_an_export_for_onnxruntime_is_a_run_like_the_others(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(folders["lm-hf"]), "--to", "onnx", "--out", str(tmp_path / "onnx")]) == 0
    capsys.readouterr()
    run, first = kf.Run.open(tmp_path / "onnx"), kf.Run.open(folders["lm"])
    assert (run.recipe.model, run.limit, run.generation) == (first.recipe.model, first.limit, first.generation)
    assert written(capsys, tmp_path / "onnx", "onnx") == written(capsys, folders["lm"])
    with pytest.raises(kf.KinfolkError, match="is an export for onnxruntime: add --engine onnx"):
        run.model()


@pytest.mark.parametrize("verb", ["eval", "predict", "inspect", "compress"])
@pytest.mark.parametrize("layout", ["-saved", "-hf"])
def test_verbs_take_every_layout(verb: str, layout: str, folders: dict[str, Path], tmp_path: Path) -> None:
    judge, lm, out = folders[f"judge{layout}"], folders[f"lm{layout}"], tmp_path / "out"
    text = str(folders["text.txt"])
    words = {
        "eval": [str(lm), "--data", text, "--json"],
        "predict": [str(judge), "--input", str(folders["labels.csv"]), "--out", str(out.with_suffix(".jsonl"))],
        "inspect": [str(lm), "--text", "some words", "--out", str(out.with_suffix(".html"))],
        "compress": [str(lm), "--steps", "heads=0.5", "--data", text, "--batches", "1", "--out", str(out)],
    }[verb]
    assert main([verb, *words]) == 0
    assert verb == "eval" or list(tmp_path.iterdir())
