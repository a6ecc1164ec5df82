"""Images that are made: what is given stays, what is made is in its place."""

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.errors import ShapeError, SpecError
from kinfolk.decoding.pictures import make_pictures
from kinfolk.objectives.image import shrunk

PNG = pytest.importorskip("PIL.Image", reason="pictures in PNG need Pillow")
TOY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "image_width": 4, "channels": 3, "max_len": 96}
NAMES = ["image-transformer", "image-transformer-2d", "image-super-resolution", "image-completion"]


def recipe(name):
    # blocks whose order is not its own inverse
    more = {"block_height": 4, "block_width": 2} if name.endswith("2d") else {}
    return kf.relative(name, size="tiny", vocab_size=263, **TOY, **more)


def given(n=2):
    return torch.randint(0, 256, (n, 8, 4, 3), generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("name", NAMES[:2])
def test_pictures_from_nothing_are_those_of_the_order(name):
    model, objective = kf.build(recipe(name), seed=0), recipe(name).objective
    made = make_pictures(model, objective, n=3, seed=5)
    assert made.shape == (3, 8, 4, 3)
    assert made.dtype == torch.uint8
    rows = torch.tensor(kf.generate(model, [[1]] * 3, 96, seed=5))[:, 1:]
    row, column, channel = objective.grid.place(torch.arange(96))
    for t in range(96):
        assert made[0, row[t], column[t], channel[t]] == max(rows[0, t] - 7, 0)
    assert not torch.equal(made, make_pictures(model, objective, n=3, seed=6))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_given_stays_and_decides(name):
    model, objective = kf.build(recipe(name), seed=0), recipe(name).objective
    whole = given()
    made = make_pictures(model, objective, given=whole, seed=1)
    assert made.shape == whole.shape
    if name != "image-super-resolution":
        assert torch.equal(made[:, :4].long(), whole[:, :4])
        # nothing of the lower half is looked at
        other = whole.clone()
        other[:, 4:] = 255 - other[:, 4:]
        assert torch.equal(make_pictures(model, objective, given=other, seed=1), made)
    else:
        small = shrunk(whole.flatten(1) + 7, objective.grid, objective.factor)
        rows = torch.tensor(kf.generate(model, small.tolist(), 96, seed=1))[:, 1:]
        assert torch.equal(made.flatten(1).long(), (rows - 7).clamp(min=0))


def test_what_does_not_fit_is_refused():
    r = recipe("image-completion")
    with pytest.raises(SpecError, match="'completion' makes images from images, and none are given"):
        make_pictures(kf.build(r), r.objective)
    with pytest.raises(ShapeError, match=r"\(8, 4, 3\), got \(4, 4, 3\)"):
        make_pictures(kf.build(r), r.objective, given=given()[:, :4])


def test_from_a_folder_of_pictures_to_pictures(tmp_path, capsys):
    """`kin train`, `kin eval` and `kin generate`, with nothing said about sizes."""
    rng = np.random.default_rng(0)
    for i in range(12):
        folder = tmp_path / "in" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        PNG.fromarray(rng.integers(0, 256, (6, 4, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    small = [f"--set={name}" for name in ("d_model=16", "n_layers=1", "d_ff=32", "n_heads=2", "training.batch_size=4")]
    for name in ("image-transformer-2d", "image-completion", "vit"):
        out = str(tmp_path / name)
        command = ["train", name, "--data", str(tmp_path / "in"), "--cache", str(tmp_path / "c"), "--steps", "2"]
        assert main([*command, "--out", out, "--quiet", "--no-tensorboard", *small]) == 0
        said = capsys.readouterr().out
        assert ("accuracy" in said) == (name == "vit")
        assert ("bits-per-dimension" in said) == (name != "vit")
    files = [str(tmp_path / "in" / "a" / "0.png"), str(tmp_path / "in" / "b" / "1.png")]
    assert main(["generate", str(tmp_path / "image-completion"), "--images", *files, "--out", str(tmp_path / "o")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "o" / "0.png"), str(tmp_path / "o" / "1.png")]
    before, after = (np.asarray(PNG.open(path)) for path in (files[0], tmp_path / "o" / "0.png"))
    assert after.shape == before.shape
    assert (after[:3] == before[:3]).all()
    assert main(["generate", str(tmp_path / "image-transformer-2d"), "--samples", "2"]) == 0
    assert len(list((tmp_path / "image-transformer-2d" / "pictures").glob("sample-*.png"))) == 2
    assert main(["generate", str(tmp_path / "image-completion"), "--prompt", "a cat"]) == 2
    assert "generates images" in capsys.readouterr().err
    assert main(["generate", str(tmp_path / "image-completion"), "--images", "nowhere.png"]) == 2
    assert "nowhere.png: no such file" in capsys.readouterr().err
