"""A tiny model that knows something, and files with labels that are easy to find."""

import csv
import random

import pytest

import kinfolk as kf
from kinfolk.core.plain import dumps
from kinfolk.data import Tokenizer
from kinfolk.family.building import build
from kinfolk.models.folder import save_model
from kinfolk.runs import folder
from kinfolk.runs.metadata import Metadata

GOOD, BAD = ("good", "fine", "great", "lovely"), ("bad", "poor", "awful", "sad")
FILL = ("the", "film", "was", "a", "plot", "and", "it", "seemed", "very", "really")


def rows(n, seed=0):
    """Texts with one telling word, and whether that is a good one."""
    lots = random.Random(seed)
    found = []
    for _ in range(n):
        label = lots.choice(("no", "yes"))
        words = [*lots.choices(FILL, k=5), lots.choice(GOOD if label == "yes" else BAD)]
        lots.shuffle(words)
        found.append({"text": " ".join(words), "label": label})
    return found


def write_csv(path, found):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, found[0])
        writer.writeheader()
        writer.writerows(found)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KINFOLK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def words():
    return Tokenizer.words((*GOOD, *BAD, *FILL))


@pytest.fixture
def files(tmp_path):
    return write_csv(tmp_path / "a.csv", rows(256)), write_csv(tmp_path / "b.csv", rows(32, seed=1))


@pytest.fixture
def run(tmp_path, words):
    """A BERT that was never trained, as a run; enough to be tuned."""
    return make_run(tmp_path / "bert", "bert", words)


def make_run(out, name, words, **numbers):
    usual = {"n_layers": 2, "d_model": 16, "d_ff": 32, "n_heads": 2, "max_len": 32}
    recipe = kf.relative(name, size="tiny", **(usual | {"vocab_size": words.vocab_size} | numbers))
    folder.create(out, dumps(recipe), Metadata().with_origin(), words)
    model = build(recipe, 0)
    save_model(model, out / "aside")
    folder.add(out, folder.WEIGHTS, lambda file: (out / "aside" / "model.safetensors").rename(file))
    return out
