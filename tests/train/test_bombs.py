"""Small files that ask for much memory are refused before it is allocated, in a process that could not have it."""

import json
import subprocess
import sys

import pytest

import kinfolk as kf
from kinfolk.core import memory
from kinfolk.core.errors import CheckpointError, SpecError
from kinfolk.models.room import check_size

SPARE = 3 << 30

HEAD = f"""
import resource, sys, tomllib, json, warnings
from pathlib import Path
import tomli_w
import torch
import kinfolk as kf
from kinfolk.core import manifest, paths
from kinfolk.core.errors import KinfolkError
from kinfolk.core.plain import dumps
from kinfolk.data import Tokenizer, open_data
from kinfolk.runs import folder
from kinfolk.runs.metadata import DataSource, Metadata
from kinfolk.runs.options import RunOptions
from kinfolk.runs.run import Run
from kinfolk.train.run import make_job

size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + {SPARE}, size + {SPARE}))
out = Path(sys.argv[1])

def refused(name, act):
    try:
        act()
    except KinfolkError as error:
        print(json.dumps([name, str(error)]))
"""

TOKENIZERS = """
def changed(change):
    content = json.loads(Tokenizer.byte().to_json())
    change(content)
    return json.dumps(content)

def added(content):
    content["added_tokens"][0]["id"] = 2**30

def vocab(content):
    content["model"]["vocab"][next(iter(content["model"]["vocab"]))] = 2**30

def padded(content):
    content["padding"] = {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None,
                          "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}

for change in (added, vocab, padded):
    text = changed(change)
    refused(change.__name__, lambda: Tokenizer.from_json(text).encode("a"))
    (out / "tokenizer.json").write_text(text)
    from kinfolk.runs.huggingface.tokenizing import read_tokenizer
    refused(change.__name__ + " imported", lambda: read_tokenizer(out, "bert"))
"""

SPECS = """
def numbers(value, at=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from numbers(item, (*at, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from numbers(item, (*at, i))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield at

for relative in ("gpt2", "vanilla", "performer", "linformer"):
    recipe = kf.relative(relative, size="tiny", vocab_size=300, n_layers=1)
    run = out / relative
    about = Metadata(data=DataSource(name="copy"), options=RunOptions()).with_origin()
    folder.create(run, dumps(recipe), about, Tokenizer.byte())
    kf.save(kf.build(recipe), out / "aside")
    (out / "aside" / "model.safetensors").rename(run / "model.safetensors")
    good = tomllib.loads((run / "spec.toml").read_text())

    for at in [at for at in numbers(good["model"]) if "order" not in at]:
        bad = json.loads(json.dumps(good))
        place = bad["model"]
        for key in at[:-1]:
            place = place[key]
        place[at[-1]] = 20_000_000
        (run / "spec.toml").write_text(tomli_w.dumps(bad))
        manifest.create(run)
        name = ".".join(map(str, at))
        refused(relative + " " + name, lambda: Run.open(run).learner())
        refused(relative + " " + name + " loaded", lambda: kf.load(run))
        print(json.dumps([relative + " " + name + " survived", ""]))
"""

BATCHES = """
data = open_data("copy")
recipe = kf.relative("gpt2", size="tiny", vocab_size=data.tokenizer.vocab_size)
for path in ("training.batch_size", "model.vocab_size", "model.d_model"):
    refused(path, lambda: make_job(paths.assign(recipe, [path + "=1000000000"]), data, 0))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What was refused, by name, in one process whose address space is limited."""
    if sys.platform != "linux":
        pytest.skip("the address space of a process is limited as Linux does it")
    command = [sys.executable, "-c", HEAD + TOKENIZERS + SPECS + BATCHES, str(tmp_path_factory.mktemp("bombs"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("name", ["added", "vocab", "padded"])
@pytest.mark.parametrize("end", ["", " imported"])
def test_ids_and_lengths_of_a_tokenizer_are_bounded(found, name, end):
    assert "is out of bounds" in found[name + end]


def test_a_spec_larger_than_its_weights_is_refused_whatever_number_is_large(found):
    tried = {name.removesuffix(" survived") for name in found if name.endswith(" survived")}
    sizes = {name for name in tried if name.rpartition(".")[2].split()[-1] in ("d_model", "d_ff", "vocab_size")}
    assert {"gpt2 d_model", "vanilla vocab_size"} < sizes
    assert {name for name in sizes if "does not fit the model" not in found.get(name, "")} == set()
    assert {name for name in sizes if "does not fit the model" not in found.get(name + " loaded", "")} == set()
    # every other number too, by what it must fit to or by the size it leads to
    assert {name for name in tried if name not in found or f"{name} loaded" not in found} == set()


def test_a_batch_or_a_model_that_no_memory_holds_is_refused(found):
    assert "training.batch_size: a batch of 1,000,000,000 rows needs at least" in found["training.batch_size"]
    for path in ("model.vocab_size", "model.d_model"):
        assert "parameters needs at least" in found[path]


def test_the_refusal_says_what_is_needed_and_what_there_is(monkeypatch):
    monkeypatch.setattr(memory, "total", lambda: 8_000_000_000)
    with pytest.raises(SpecError, match=r"^a needs at least 12\.3 GB, and this machine has 8\.0 GB$"):
        memory.require(12.3e9, "a")
    memory.require(8e9, "a")


def test_an_ordinary_model_is_not_refused(monkeypatch):
    recipe = kf.relative("gpt2", size="tiny")
    params = kf.build(recipe).n_params
    monkeypatch.setattr(memory, "total", lambda: 4 * params)
    kf.build(recipe)
    monkeypatch.setattr(memory, "total", lambda: 4 * params - 1)
    with pytest.raises(SpecError, match=rf"model: {params:,} parameters needs at least"):
        kf.build(recipe)


@pytest.mark.parametrize("depth", [2, 300])
def test_many_small_layers_are_no_model_of_few_weights(tmp_path, depth):
    """No number of such a spec is large by itself: it is their product that no file of weights supports."""
    recipe = kf.relative("gpt2", size="tiny", n_layers=2, d_model=64, n_heads=2, d_ff=256, vocab_size=99, max_len=64)
    model = kf.build(recipe)
    kf.save(model, tmp_path)
    stack = recipe.model.decoder
    blocks = (stack.blocks[0],) * depth
    deep = recipe.model.replace(decoder=stack.replace(blocks=blocks, order=tuple(range(depth))))
    stored = sum(p.numel() for p in model.parameters())
    if depth == 2:
        assert check_size(deep, tmp_path / "model.safetensors") is None
        return
    with pytest.raises(CheckpointError, match=f"it holds {stored:,} numbers, the spec says "):
        check_size(deep, tmp_path / "model.safetensors")
