"""Images that are judged: files in, classes out."""

import json

import numpy as np
import pytest
import torch

from kinfolk.cli.main import main
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.use.predict.opening import open_run
from kinfolk.use.serve.served import Served

PNG = pytest.importorskip("PIL.Image", reason="picture files need kinfolk[data]")
HEIGHT, WIDTH = 8, 12


def draw(n, seed, height=HEIGHT, width=WIDTH):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A run that has seen a folder of pictures in two classes, for a moment."""
    folder = tmp_path_factory.mktemp("pictures")
    for seed, kind in enumerate(("cat", "dog")):
        (folder / "data" / kind).mkdir(parents=True)
        for i, values in enumerate(draw(6, seed)):
            PNG.fromarray(values).save(folder / "data" / kind / f"{i}.png")
    small = [f"--set={name}" for name in ("d_model=16", "n_layers=1", "d_ff=32", "n_heads=2", "training.batch_size=4")]
    command = ["train", "vit", "--data", str(folder / "data"), "--cache", str(folder / "cache"), "--steps", "2"]
    assert main([*command, "--out", str(folder / "run"), "--quiet", "--no-tensorboard", *small]) == 0
    return folder


def said(capsys, *words):
    capsys.readouterr()
    assert main(["predict", *map(str, words)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_files_of_a_folder_one_file_and_names_in_a_table_say_the_same(taught, capsys):
    run, folder = taught / "run", taught / "data" / "dog"
    whole = said(capsys, run, "--input", folder)
    assert [row["file"] for row in whole] == [str(folder / f"{i}.png") for i in range(6)]
    opened = open_run(run)
    assert (opened.picture, opened.classes, opened.task.labels) == ((HEIGHT, WIDTH, 3), ("cat", "dog"), "class")
    tokens = torch.from_numpy(draw(6, 1).reshape(6, -1)).long() + 7
    with torch.no_grad():
        wanted = opened.learner.model.run(Batch(index=torch.arange(6), tokens=tokens)).logits.softmax(-1)
    got = torch.tensor([list(row["probabilities"].values()) for row in whole])
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    (alone,) = said(capsys, run, "--input", folder / "3.png")
    assert alone["probabilities"] == pytest.approx(whole[3]["probabilities"], abs=1e-5)
    (taught / "list.txt").write_text("data/dog/3.png\ndata/dog/0.png\n")
    (taught / "list.csv").write_text("id,name\nx,data/dog/3.png\n")
    names = said(capsys, run, "--input", taught / "list.txt", "--rows", "1")
    assert [row["label"] for row in names] == [whole[3]["label"], whole[0]["label"]]
    (named,) = said(capsys, run, "--input", taught / "list.csv", "--text-column", "name", "--echo")
    assert (named["id"], named["name"]) == ("x", "data/dog/3.png")
    assert named["score"] == pytest.approx(whole[3]["score"], abs=1e-5)


def test_pictures_of_other_sizes_are_cut_and_scaled(taught, capsys):
    PNG.fromarray(draw(1, 5, 40, 30)[0]).save(taught / "large.png")
    (row,) = said(capsys, taught / "run", "--input", taught / "large.png")
    assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_what_is_no_picture_is_refused_with_its_name(taught, capsys):
    (taught / "broken.png").write_bytes(b"no picture")
    (taught / "some.txt").write_text("nowhere.png\ndata/dog/0.png\nbroken.png\n")
    assert main(["predict", str(taught / "run"), "--input", str(taught / "some.txt")]) == 2
    assert "some.txt:1: nowhere.png: no such file" in capsys.readouterr().err
    rows = said(capsys, taught / "run", "--input", taught / "some.txt", "--on-bad", "skip")
    assert [row["line"] for row in rows] == [2]
    assert main(["predict", str(taught / "run"), "--input", str(taught / "broken.png")]) == 2
    assert "cannot be read as an image" in capsys.readouterr().err


def test_a_server_of_texts_refuses_a_run_of_pictures(taught):
    with pytest.raises(SpecError, match="kin predict reads images"):
        _ = Served.open(taught / "run").opened


def test_an_imported_vision_transformer_says_what_the_original_says(tmp_path, capsys):
    transformers = pytest.importorskip("transformers", reason="is the other side of this test")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        image_size=8,
        patch_size=4,
        id2label={0: "cat", 1: "dog", 2: "cow"},
    )
    theirs = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        for p in theirs.parameters():
            p.mul_(6 if p.ndim > 1 else 1)
    theirs.save_pretrained(tmp_path / "their")
    assert main(["import", str(tmp_path / "their"), "--out", str(tmp_path / "run")]) == 0
    values = draw(1, 2, 8, 8)[0]
    PNG.fromarray(values).save(tmp_path / "one.png")
    (row,) = said(capsys, tmp_path / "run", "--input", tmp_path / "one.png")
    pixels = (torch.from_numpy(values).permute(2, 0, 1)[None].float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        wanted = theirs(pixels).logits.softmax(-1)[0]
    assert list(row["probabilities"]) == ["cat", "dog", "cow"]
    assert list(row["probabilities"].values()) == pytest.approx(wanted.tolist(), abs=1e-5)
