"""Images from files: what is read is what was written, and what is wrong is named."""

import gzip
import pickle
import struct
import sys

import numpy as np
import pytest

from kinfolk.core.errors import DataError, MissingExtraError
from kinfolk.data import Batches, Preparation, open_data
from kinfolk.data.files.image_files import decode, write_png
from kinfolk.data.files.image_records import GREY
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS, Tokenizer

PNG = pytest.importorskip("PIL.Image", reason="pictures in PNG need Pillow")


def pictures(n, height, width, channels, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, channels)).astype(np.uint8)


def write_idx(folder, n=40, part="train", packed=False, labels=True, side=(5, 7)):
    images, classes = pictures(n, *side, 1), np.arange(n, dtype=np.uint8) % 10
    ending, opener = (".gz", gzip.open) if packed else ("", open)
    head = struct.pack(">HBBIII", 0, 8, 3, n, *side)
    with opener(folder / f"{part}-images-idx3-ubyte{ending}", "wb") as file:
        file.write(head + images.tobytes())
    if labels:
        with opener(folder / f"{part}-labels-idx1-ubyte{ending}", "wb") as file:
            file.write(struct.pack(">HBBI", 0, 8, 1, n) + classes.tobytes())
    return images, classes


def every(data, *names):
    """Return all examples of some splits as a set of (values, label)."""
    found = []
    for name in names:
        split = data.split(name)
        found += [(tuple(ids - N_SPECIALS), label) for ids, label in split.examples(np.arange(len(split)))]
    return sorted(found)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_idx_files_are_read_as_written(tmp_path, packed):
    images, classes = write_idx(tmp_path, packed=packed)
    tested, _ = write_idx(tmp_path, 12, "t10k", packed)
    data = open_data(tmp_path, cache=tmp_path / "cache")
    assert data.kind == "labelled"
    assert every(data, "train", "valid") == sorted(
        (tuple(image.ravel()), int(label)) for image, label in zip(images, classes, strict=True)
    )
    assert len(data.split("valid")) == 2
    assert len(data.split("test")) == len(tested)
    split = data.split("train")
    assert (split.height, split.width, split.channels, split.classes) == (5, 7, 1, tuple("0123456789"))
    assert split.n_tokens == split.n_bytes == 38 * 35
    again = open_data(tmp_path / f"train-images-idx3-ubyte{'.gz' if packed else ''}", cache=tmp_path / "cache")
    assert every(again, "train") == every(data, "train")


def test_another_seed_holds_out_others_and_another_content_has_another_fingerprint(tmp_path):
    write_idx(tmp_path)
    first, other = (open_data(tmp_path, cache=tmp_path / "c", seed=seed) for seed in (0, 1))
    assert every(first, "valid") != every(other, "valid")
    assert first.fingerprint != other.fingerprint
    same = open_data(tmp_path, cache=tmp_path / "c").fingerprint
    assert same == first.fingerprint
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert open_data(tmp_path, cache=tmp_path / "c").fingerprint != same


def test_batches_of_labelled_pictures_have_no_end(tmp_path):
    images, classes = write_idx(tmp_path)
    batches = Batches(open_data(tmp_path, cache=tmp_path / "c").split("train"), batch_size=4, length=35, seed=1)
    batch = batches.at(0)
    assert batch.tokens.shape == (4, 35)
    assert batch.keep.all()
    known = {tuple(image.ravel()): int(label) for image, label in zip(images, classes, strict=True)}
    for row, label in zip(batch.tokens.numpy() - N_SPECIALS, batch.labels.tolist(), strict=True):
        assert known[tuple(row)] == label


def test_batches_without_labels_begin_with_an_opening(tmp_path):
    images, _ = write_idx(tmp_path)
    data = open_data(f"images:{tmp_path}", cache=tmp_path / "c")
    assert data.kind == "images"
    batches = Batches(data.split("train"), batch_size=4, length=35, seed=1)
    batch = batches.at(0)
    assert batch.tokens.shape == (4, 36)
    assert batch.labels is None
    assert (batch.tokens[:, 0] == Tokenizer.byte().bos).all()
    known = {tuple(image.ravel()) for image in images}
    seen = {tuple(row) for step in range(batches.steps_per_epoch) for row in batches.at(step).tokens[:, 1:].numpy() - 7}
    assert seen <= known
    assert len(seen) >= 38
    short = Batches(data.split("train"), batch_size=4, length=20, seed=1).at(0)
    assert (short.tokens == batch.tokens[:, :21]).all()
    halves = [batches.at(3, rank, 2).tokens for rank in range(2)]
    assert (np.concatenate(halves) == batches.at(3).tokens.numpy()).all()


def test_idx_without_labels_is_a_set_to_be_modelled(tmp_path):
    write_idx(tmp_path, labels=False)
    data = open_data(tmp_path, cache=tmp_path / "c")
    assert data.kind == "images"
    assert len(data.split("train").rows(np.arange(3))) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda raw: b"\1" + raw[1:], "not an IDX file: it begins with 01 00 08 03"),
        (lambda raw: raw[:2] + b"\x0d" + raw[3:], "IDX type 13 with 3 axes"),
        (lambda raw: raw[:9], "not an IDX file"),
        (lambda raw: raw[:-1], r"is cut short: 40 images take 1,416 bytes, it has 1,415"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, change, said):
    write_idx(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=said):
        open_data(tmp_path, cache=tmp_path / "c")


def test_labels_that_do_not_fit_and_broken_gzip_are_refused(tmp_path):
    write_idx(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    raw = labels.read_bytes()
    labels.write_bytes(struct.pack(">HBBI", 0, 8, 1, 39) + raw[8:-1])
    with pytest.raises(DataError, match="39 labels for the 40 images of train-images-idx3-ubyte"):
        open_data(tmp_path, cache=tmp_path / "c")
    labels.write_bytes(raw[:-3])
    with pytest.raises(DataError, match="40 labels are promised, 37 are there"):
        open_data(tmp_path, cache=tmp_path / "c")
    (tmp_path / "z").mkdir()
    write_idx(tmp_path / "z", packed=True)
    path = tmp_path / "z" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="broken gzip"):
        open_data(tmp_path / "z", cache=tmp_path / "c")
    assert not list((tmp_path / "c").glob("*.part"))


def write_cifar(folder, n=6, labels=1, name="data_batch_1.bin", seed=0):
    images = pictures(n, 32, 32, 3, seed)
    classes = np.arange(n, dtype=np.uint8) % (10 if labels == 1 else 100)
    # channel after channel, with the coarse label first where there are two
    planes = images.transpose(0, 3, 1, 2).reshape(n, -1)
    heads = [classes // 5, classes][-labels:]
    (folder / name).write_bytes(np.concatenate([*(h[:, None] for h in heads), planes], 1).tobytes())
    return images, classes


@pytest.mark.parametrize("labels", [1, 2], ids=["cifar-10", "cifar-100"])
def test_cifar_files_are_read_as_written(tmp_path, labels):
    names = ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin") if labels == 1 else ("train.bin", "test.bin")
    written = [write_cifar(tmp_path, 6, labels, name, seed) for seed, name in enumerate(names)]
    data = open_data(tmp_path, cache=tmp_path / "c")
    split = data.split("train")
    assert (split.height, split.width, split.channels) == (32, 32, 3)
    assert len(split.classes) == (10 if labels == 1 else 100)
    want = [
        (tuple(i.ravel()), int(c)) for images, classes in written[:-1] for i, c in zip(images, classes, strict=True)
    ]
    assert every(data, "train", "valid") == sorted(want)
    want = [(tuple(i.ravel()), int(c)) for i, c in zip(*written[-1], strict=True)]
    assert every(data, "test") == sorted(want)


def test_cifar_in_grey_and_with_names(tmp_path):
    images, _ = write_cifar(tmp_path)
    (tmp_path / "batches.meta.txt").write_text("plane car bird cat deer dog frog horse ship truck\n")
    assert open_data(tmp_path, cache=tmp_path / "c").split("train").classes[3] == "cat"
    data = open_data(f"images:channels=1:{tmp_path}", cache=tmp_path / "c")
    grey = {tuple(np.rint(image.reshape(-1, 3) @ GREY).astype(int)) for image in images}
    rows = data.split("train").rows(np.arange(5))
    assert data.split("train").channels == 1
    assert {tuple(row - N_SPECIALS) for row in rows} <= grey
    assert open_data(f"images:{tmp_path}", cache=tmp_path / "c").fingerprint != data.fingerprint


def test_what_is_no_cifar_is_refused(tmp_path):
    write_cifar(tmp_path)
    path = tmp_path / "data_batch_1.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-5])
    with pytest.raises(
        DataError, match=r"no file of CIFAR: records have 3073 or 3074 bytes \(data_batch_1.bin 18,433\)"
    ):
        open_data(tmp_path, cache=tmp_path / "c")
    path.write_bytes(bytes([77]) + raw[1:])
    with pytest.raises(DataError, match="image 0 has label 77, but there are 10 classes"):
        open_data(tmp_path, cache=tmp_path / "c")


def folder_of(root, n=9, size=(4, 6), channels=3, names=("cat", "dog", "owl")):
    images = pictures(n, *size, channels)
    for i, image in enumerate(images):
        folder = root / names[i % len(names)] if names else root
        folder.mkdir(parents=True, exist_ok=True)
        write_png(folder / f"{i}.png", image)
    return images


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_of_pictures_has_a_class_per_folder(tmp_path, channels):
    images = folder_of(tmp_path / "in", channels=channels)
    data = open_data(tmp_path / "in", cache=tmp_path / "c", choices=Preparation(valid=0.2))
    split = data.split("train")
    assert split.classes == ("cat", "dog", "owl")
    assert (split.height, split.width, split.channels) == (4, 6, channels)
    assert len(data.split("valid")) == 2
    want = sorted((tuple(image.ravel()), i % 3) for i, image in enumerate(images))
    assert every(data, "train", "valid") == want
    # what is unpacked is used again
    kept = next((tmp_path / "c").glob("in-*"))
    stamp = (kept / "train.bin").stat().st_mtime_ns
    again = open_data(tmp_path / "in", cache=tmp_path / "c", choices=Preparation(valid=0.2))
    assert again.fingerprint == data.fingerprint
    assert (kept / "train.bin").stat().st_mtime_ns == stamp


def test_parts_and_pictures_without_classes(tmp_path):
    folder_of(tmp_path / "a" / "train")
    tested = folder_of(tmp_path / "a" / "test", n=3)
    data = open_data(tmp_path / "a", cache=tmp_path / "c")
    assert every(data, "test") == sorted((tuple(image.ravel()), i) for i, image in enumerate(tested))
    assert len(data.split("train")) + len(data.split("valid")) == 9
    folder_of(tmp_path / "b", names=())
    plain = open_data(tmp_path / "b", cache=tmp_path / "c")
    assert plain.kind == "images"
    assert len(plain.split("train")) == 8


def test_pictures_of_several_sizes_are_scaled_or_refused(tmp_path):
    folder_of(tmp_path / "in")
    write_png(tmp_path / "in" / "owl" / "wide.png", pictures(1, 8, 20, 3)[0])
    with pytest.raises(DataError, match=r"wide.png: is 20 x 8 pixels of 3 channels, but .* is 6 x 4"):
        open_data(tmp_path / "in", cache=tmp_path / "c")
    data = open_data(f"images:side=4,channels=1:{tmp_path / 'in'}", cache=tmp_path / "c")
    split = data.split("train")
    assert (split.height, split.width, split.channels, split.n_values) == (4, 4, 1, 16)
    # the middle of a picture that is wider than high, neither squeezed nor the left of it
    flat = np.zeros((4, 12, 1), np.uint8)
    flat[:, 4:8] = 200
    write_png(tmp_path / "flat.png", flat)
    assert (decode(tmp_path / "flat.png", (4, 4)) == 200).all()
    assert (decode(tmp_path / "flat.png", (8, 8)) == 200).all()
    assert (decode(tmp_path / "flat.png", (2, 6)) == decode(tmp_path / "flat.png", (2, 6), 3)[..., :1]).all()
    assert (decode(tmp_path / "flat.png") == flat).all()


def test_what_is_no_picture_is_named_or_skipped(tmp_path):
    folder_of(tmp_path / "in")
    (tmp_path / "in" / "dog" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (tmp_path / "in" / "dog" / "notes.txt").write_text("a dog")
    with pytest.raises(DataError, match=r"bad.png: cannot be read as an image"):
        open_data(tmp_path / "in", cache=tmp_path / "c")
    with pytest.warns(UserWarning, match="2 images were skipped, the first: .*bad.png"):
        data = open_data(tmp_path / "in", cache=tmp_path / "c", choices=Preparation(on_bad="skip"))
    assert len(data.split("train")) + len(data.split("valid")) == 9
    write_png(tmp_path / "in" / "beside.png", pictures(1, 4, 6, 3)[0])
    with pytest.raises(DataError, match=r"beside.png: is beside folders of classes"):
        open_data(tmp_path / "in", cache=tmp_path / "c")


def test_names_are_checked(tmp_path):
    folder_of(tmp_path / "in", names=())
    for name, said in [
        (f"images:sides=4:{tmp_path / 'in'}", "unknown setting 'sides'; did you mean 'side'"),
        (f"images:channels=2:{tmp_path / 'in'}", "channels must be 1 or 3"),
        (f"images:{tmp_path / 'nowhere'}", "no such file or folder"),
    ]:
        with pytest.raises(DataError, match=said):
            open_data(name, cache=tmp_path / "c")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("no picture " * 50)
    assert open_data(tmp_path / "text", cache=tmp_path / "c", choices=Preparation(valid=0.0)).kind == "text"
    with pytest.raises(DataError, match="has no images"):
        open_data(f"images:{tmp_path / 'text'}", cache=tmp_path / "c")
    write_idx(tmp_path)
    with pytest.raises(DataError, match="side is for folders of image files"):
        open_data(f"images:side=8:{tmp_path}", cache=tmp_path / "c")


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    folder_of(tmp_path / "in", names=())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"kinfolk\[data\]"):
        open_data(tmp_path / "in", cache=tmp_path / "c")
    # IDX and CIFAR need nothing
    write_idx(tmp_path)
    assert len(open_data(tmp_path, cache=tmp_path / "c").split("train")) == 38


def test_a_split_goes_to_another_process_without_its_bytes(tmp_path):
    write_idx(tmp_path, n=2000)
    split = open_data(tmp_path, cache=tmp_path / "c").split("train")
    before = split.examples(np.array([3, 1500]))
    sent = pickle.dumps(split.part.records)
    assert len(sent) < 2000
    assert (pickle.loads(sent)[0].values(5) == split.part.values(5)).all()
    after = split.examples(np.array([3, 1500]))
    assert all((a[0] == b[0]).all() for a, b in zip(before, after, strict=True))
