"""The public functions, on every layout of a folder and through the command line: one answer."""

import json
from pathlib import Path

import numpy as np
import pytest

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.data import open_data
from kinfolk.train.finetune.recipe import Effort
from tests.use.serve.conftest import serving

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


@pytest.fixture(scope="module")
def exports(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same two models as ONNX exports: one of the run, one of the Hugging Face folder."""
    place = tmp_path_factory.mktemp("exports")
    for name, origin in (("judge", "judge"), ("lm", "lm-hf")):
        assert main(["export", str(folders[origin]), "--to", "onnx", "--out", str(place / name)]) == 0
    return {f"{name}-onnx": place / name for name in ("judge", "lm")}


@pytest.mark.slow
def test_an_export_for_onnxruntime_is_a_run_like_the_others(
    folders: dict[str, Path], exports: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, first = kf.Run.open(exports["lm-onnx"]), kf.Run.open(folders["lm"])
    assert (run.recipe.model, run.limit, run.generation) == (first.recipe.model, first.limit, first.generation)
    assert written(capsys, exports["lm-onnx"], "onnx") == written(capsys, folders["lm"])
    with pytest.raises(kf.KinfolkError, match="is an export for onnxruntime and has no weights"):
        run.model()
    judge, texts = kf.Run.open(exports["judge-onnx"]), ["good 3", "bad 4"]
    assert judge.classes == ("bad", "good")
    for one, other in zip(kf.predict(judge, texts), kf.predict(folders["judge"], texts), strict=True):
        assert one["label"] == other["label"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    np.testing.assert_allclose(kf.embed(judge, texts), kf.embed(folders["judge"], texts), atol=1e-5)
    with pytest.raises(kf.KinfolkError, match="a decoder's graph says what follows"):
        kf.embed(run, texts)
    data = f"labelled:{folders['labels.csv']}"
    assert kf.evaluate(judge, data)["class"] == pytest.approx(kf.evaluate(folders["judge"], data)["class"], abs=1e-5)
    text, downloaded = str(folders["text.txt"]), folders["lm-hf"]
    assert kf.evaluate(run, text)["next-token"] == pytest.approx(kf.evaluate(downloaded, text)["next-token"], abs=1e-4)


NO_WEIGHTS = "is an export for onnxruntime and has no weights"
VERBS: dict[str, list[str]] = {
    "predict": ["{judge}", "--input", "{labels}", "--out", "{out}.jsonl"],
    "embed": ["{judge}", "--input", "{labels}", "--out", "{out}.npy"],
    "generate": ["{lm}", "--prompt", "some", "--greedy", "--max-new", "3"],
    "eval": ["{lm}", "--data", "{text}", "--json"],
    "eval labels": ["{judge}", "--data", "{labels}", "--json"],
    "inspect": ["{lm}", "--text", "some words", "--out", "{out}.html"],
    "compress": ["{lm}", "--steps", "heads=0.5", "--data", "{text}", "--batches", "1", "--out", "{out}"],
    "finetune": ["{lm}", "--train", "{labels}", "--steps", "1", "--no-tensorboard", "--out", "{out}"],
    "export hf": ["{judge}", "--to", "hf", "--out", "{out}"],
    "export onnx": ["{judge}", "--to", "onnx", "--int8", "--out", "{out}"],
    "diff": ["{lm}", "gpt2", "--size", "tiny"],
    "resume": ["{lm}", "--quiet"],
}
REFUSED = {
    ("inspect", "-onnx"): NO_WEIGHTS,
    ("compress", "-onnx"): NO_WEIGHTS,
    ("finetune", "-onnx"): NO_WEIGHTS,
    ("export hf", "-onnx"): NO_WEIGHTS,
    ("resume", "-saved"): "not a run folder: it has no run.toml",
    ("resume", "-hf"): "not a run folder: it has no run.toml",
    ("resume", "-onnx"): "not a run folder: it has no run.toml",
}
"""What makes no sense, and the one line that says so; everything else works."""


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("layout", ["", "-saved", "-hf", pytest.param("-onnx", marks=pytest.mark.slow)])
def test_every_verb_takes_every_kind_of_folder_or_refuses_it_in_one_line(
    verb: str,
    layout: str,
    folders: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    places = folders | (request.getfixturevalue("exports") if layout == "-onnx" else {})
    names = {"judge": places[f"judge{layout}"], "lm": places[f"lm{layout}"], "out": tmp_path / "out"}
    names |= {"labels": folders["labels.csv"], "text": folders["text.txt"]}
    before = sorted(tmp_path.iterdir())
    code = main([verb.split()[0], *(word.format(**names) for word in VERBS[verb])])
    stderr = capsys.readouterr().err
    if (why := REFUSED.get((verb, layout))) is None:
        assert code == 0, stderr
        assert any("{out}" in word for word in VERBS[verb]) == (sorted(tmp_path.iterdir()) != before)
        return
    assert code == 2
    assert why in stderr
    assert [line.split(":")[0] for line in stderr.splitlines()][-1] == f"kin {verb.split()[0]}"
    assert "Traceback" not in stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("layout", ["", "-saved", "-hf", pytest.param("-onnx", marks=pytest.mark.slow)])
def test_every_kind_of_folder_is_served(
    layout: str, folders: dict[str, Path], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """`kin serve` blocks, so the server is asked as a client asks: texts as of `generate`, classes as of `predict`."""
    places = folders | (request.getfixturevalue("exports") if layout == "-onnx" else {})
    judge, lm = places[f"judge{layout}"], places[f"lm{layout}"]
    texts = ["good 3", "bad 4"]
    with serving([judge, lm], engine="onnx" if layout == "-onnx" else "torch") as running:
        body = {"model": lm.name, "prompt": "some", "temperature": 0, "max_tokens": 5, "echo": True}
        completion = running.post("/v1/completions", body)
        classes = running.post("/v1/classify", {"model": judge.name, "input": texts})
        vectors = running.post("/v1/embeddings", {"model": judge.name, "input": texts})
    assert [answer.status_code for answer in (completion, classes, vectors)] == [200] * 3, classes.text + vectors.text
    capsys.readouterr()
    ids = written(capsys, folders["lm"])
    assert completion.json()["choices"][0]["text"] == kf.Run.open(folders["lm"]).tokenizer.decode(ids)
    scores = [list(row["probabilities"].values()) for row in classes.json()["data"]]
    first = [list(row["probabilities"].values()) for row in kf.predict(folders["judge"], texts)]
    np.testing.assert_allclose(scores, first, atol=1e-5)
    found = [row["embedding"] for row in vectors.json()["data"]]
    np.testing.assert_allclose(found, kf.embed(folders["judge"], texts), atol=1e-5)
