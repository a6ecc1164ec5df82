"""What a folder may look like, what is refused about it, and that nothing of it is ever run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import kinfolk as kf
from kinfolk.core.errors import CheckpointError
from kinfolk.layers.heads.vector_head import VectorHead
from kinfolk.runs.huggingface.folder import open_folder
from kinfolk.runs.huggingface.places import (
    Below,
    BelowNothing,
    ByHead,
    HeadRows,
    InThrees,
    Nothing,
    Patch,
    Place,
    Spread,
    Stacked,
    Turned,
)

NUMBERS = {"d_model": 24, "n_layers": 2, "n_heads": 3, "d_ff": 40, "vocab_size": 37, "max_len": 24}
TOKENS = torch.randint(37, (2, 9), generator=torch.Generator().manual_seed(0))


def small(name="roberta", **numbers):
    return kf.build(kf.relative(name, size="base", **{**NUMBERS, **numbers}), seed=1).eval()


@pytest.fixture
def folder(tmp_path):
    """A masked language model as a folder, made without their library."""
    return kf.to_hf(small("bert", **{"model.head": small().spec.head}), tmp_path / "bert")


def change(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def refused(folder, *words):
    with pytest.raises(CheckpointError) as error:
        kf.from_hf(folder)
    for word in words:
        assert word in str(error.value), str(error.value)


def test_a_model_survives_the_round_trip_bit_for_bit(folder):
    model = small("bert", **{"model.head": small().spec.head})
    again = kf.from_hf(folder).eval()
    assert again.spec == model.spec
    assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)


@pytest.mark.parametrize(
    "name", ["bert", "distilbert", "albert", "gpt2", "t5", "t5-v1-1", "bart", "deberta", "deberta-v2"]
)
def test_relatives_are_written_as_what_they_are(name, tmp_path):
    model = small(name)
    kind = {"t5-v1-1": "t5"}.get(name, name)
    kf.to_hf(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == kind
    again = kf.from_hf(tmp_path).eval()
    more = (TOKENS[:, :5],) if model.spec.topology == "encoder-decoder" else ()
    assert torch.equal(again(TOKENS, *more).logits, model(TOKENS, *more).logits)


def test_what_no_kind_expresses_is_refused_with_its_place(tmp_path):
    with pytest.raises(CheckpointError, match=r"decoder\.blocks\[0\]\.parts\[0\]"):
        kf.to_hf(small("performer"), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(CheckpointError, match=r"position is Rotary"):
        kf.to_hf(small("gpt2", **{"model.decoder.blocks[1].parts[0].position": {"kind": "rotary"}}), tmp_path / "a")


def test_an_imported_model_is_an_ordinary_one(folder, tmp_path):
    """Its attention is exchanged for another, it is trained a step, and saved."""
    model = kf.from_hf(folder)
    before = model.embedding.weight.detach().clone()
    on_disk = (folder / "model.safetensors").read_bytes()
    model(TOKENS).logits.square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(model.embedding.weight, before)
    assert (folder / "model.safetensors").read_bytes() == on_disk
    kf.save(model, tmp_path / "saved")
    assert torch.equal(kf.load(tmp_path / "saved").eval()(TOKENS).logits, model.eval()(TOKENS).logits)
    window = kf.patterns.Window(left=2, right=2)
    blocks = tuple(
        b.replace(parts=(b.parts[0].replace(pattern=window), *b.parts[1:])) for b in model.spec.encoder.blocks
    )
    other = kf.build(model.spec.replace(encoder=model.spec.encoder.replace(blocks=blocks))).eval()
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(other(TOKENS).logits, model(TOKENS).logits)


def test_shards_are_one_model(folder):
    whole = kf.from_hf(folder).eval()(TOKENS).logits
    tensors = load_file(folder / "model.safetensors")
    names, parts = sorted(tensors), {}
    for i in range(3):
        part = f"model-{i + 1:05}-of-00003.safetensors"
        save_file({name: tensors[name] for name in names[i::3]}, folder / part)
        parts |= dict.fromkeys(names[i::3], part)
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    assert torch.equal(kf.from_hf(folder).eval()(TOKENS).logits, whole)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, "index.json", "model-00002-of-00003.safetensors")
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    refused(folder, "elsewhere")
    index.write_text(json.dumps({"weights": {}}))
    refused(folder, "weight_map")


def test_large_weights_are_written_in_shards(folder, tmp_path):
    model = kf.from_hf(folder).eval()
    out = kf.to_hf(model, tmp_path / "parts", shard=10_000)
    files = sorted(file.name for file in out.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert torch.equal(kf.from_hf(out).eval()(TOKENS).logits, model(TOKENS).logits)
    tensors = [x for file in files for x in load_file(out / file).values()]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in tensors)
    assert len(index["weight_map"]) == len(tensors)
    # each holds at most so much, unless it is a single tensor
    for file in files:
        sizes = [x.nbytes for x in load_file(out / file).values()]
        assert sum(sizes) <= 10_000 or len(sizes) == 1
    # other weights in the same folder, in one file again
    other = small("bert", **{"model.head": small().spec.head}, d_ff=48)
    kf.to_hf(other, out)
    assert torch.equal(kf.from_hf(out).eval()(TOKENS).logits, other(TOKENS).logits)
    kf.to_hf(model, out, shard=10_000)
    assert torch.equal(kf.from_hf(out).eval()(TOKENS).logits, model(TOKENS).logits)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_weights_are_read_as_data(folder, zipped):
    whole = kf.from_hf(folder).eval()(TOKENS).logits
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert torch.equal(kf.from_hf(folder).eval()(TOKENS).logits, whole)


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_a_pickle_that_would_run_something_is_refused(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    mark = tmp_path / "it-ran"
    torch.save({"bert.embeddings.word_embeddings.weight": Harm(mark)}, folder / "pytorch_model.bin")
    refused(folder, "pytorch_model.bin", "nothing of a file is ever run")
    assert not mark.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert mark.exists(), "the file was harmless, so the test proves nothing"
    torch.save([torch.zeros(2)], folder / "pytorch_model.bin")
    refused(folder, "no table of tensors")


def test_older_names_and_repeated_tensors(folder):
    whole = kf.from_hf(folder).eval()(TOKENS).logits
    tensors = load_file(folder / "model.safetensors")
    old = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for n, x in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(24)[None]
    old["bert.pooler.dense.weight"] = torch.zeros(24, 24)
    save_file(old, folder / "model.safetensors")
    imported = open_folder(folder)
    assert torch.equal(imported.model.eval()(TOKENS).logits, whole)
    assert imported.left_out == ("bert.pooler.dense.weight",)
    old["cls.predictions.decoder.weight"][3, 5] += 1
    save_file(old, folder / "model.safetensors")
    refused(folder, "cls.predictions.decoder.weight", "tied")


def test_half_precision_becomes_single(folder):
    tensors = {name: x.to(torch.bfloat16) for name, x in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    model = kf.from_hf(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.embedding.weight, tensors["bert.embeddings.word_embeddings.weight"].float())


def test_a_damaged_file_is_named(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:5], b"", b"\xff" * 200, whole + b"more"):
        file.write_bytes(damaged)
        refused(folder, "model.safetensors")
    file.unlink()
    refused(folder, "no weights here", "model.safetensors", "pytorch_model.bin")


def test_every_tensor_that_does_not_fit_is_listed(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.encoder.layer.0.attention.self.query.weight"] = torch.zeros(24, 23)
    tensors["bert.encoder.layer.1.output.dense.weight"] = torch.zeros(24, 41)
    tensors["bert.encoder.layer.7.output.dense.weight"] = torch.zeros(1)
    del tensors["bert.embeddings.LayerNorm.bias"]
    save_file(tensors, folder / "model.safetensors")
    refused(
        folder,
        "missing bert.embeddings.LayerNorm.bias",
        "unknown bert.encoder.layer.7.output.dense.weight",
        "layer.0.attention.self.query.weight [24, 23]",
        "layer.1.output.dense.weight [24, 41]",
        "[24, 40]",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("is_decoder", True),
        ("hidden_act", "mish"),
        ("tie_word_embeddings", False),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", "2"),
        ("layer_norm_eps", "small"),
        ("model_type", "bloom"),
        ("architectures", ["BertForQuestions"]),
        ("sliding_window", 128),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_its_key_and_value(folder, key, value):
    change(folder, **{key: value})
    shown = value[0] if isinstance(value, list) else value
    refused(folder, "config.json", key.removesuffix("s"), repr(shown))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 is more than any model has"),
        ({"vocab_size": 10**12}, "vocab_size = 1000000000000 is more than any model has"),
        ({"hidden_size": 3 * 10**6, "intermediate_size": 10**6}, "parameters, and its weights are"),
        ({"vocab_size": 9_000_000}, "says a model of 225,010,280 parameters"),
    ],
)
def test_a_configuration_cannot_fill_the_memory(folder, values, words):
    change(folder, **values)
    refused(folder, "config.json", words)


def test_a_key_may_be_declared_to_be_of_no_account(folder):
    change(folder, sliding_window=128, unused_flag=False)
    refused(folder, "sliding_window = 128", "ignore")
    assert kf.from_hf(folder, ignore=["sliding_window"]).n_params > 0


def test_an_old_configuration_does_not_say_what_it_is_of(folder):
    """Neither model_type nor architectures, as files of 2019: the names of tensors tell both."""
    file = folder / "config.json"
    values = json.loads(file.read_text())
    old = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
    whole = open_folder(folder)
    file.write_text(json.dumps(old))
    again = open_folder(folder)
    assert (again.model_type, again.architecture) == ("bert", "BertForMaskedLM")
    assert torch.equal(again.model.eval()(TOKENS).logits, whole.model.eval()(TOKENS).logits)
    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("bert."): x for name, x in tensors.items()}, folder / "model.safetensors")
    refused(folder, "model_type is missing", "--type")
    assert kf.from_hf(folder, model_type="bert").spec == whole.model.spec


def test_a_folder_without_a_configuration(tmp_path):
    refused(tmp_path, "config.json")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "config.json", "JSON")


def test_sentence_folders_say_how_to_pool(tmp_path):
    head = VectorHead(pool="mean", length="unit")
    model = small("bert", **{"model.head": head})
    kf.to_hf(model, tmp_path)
    again = kf.from_hf(tmp_path).eval()
    assert again.spec.head == head
    keep = torch.tensor([[True] * 9, [True] * 4 + [False] * 5])
    vectors = again(TOKENS, keep=keep).logits
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(2))
    alone = again(TOKENS[1:, :4]).logits
    torch.testing.assert_close(vectors[1:], alone, rtol=0, atol=1e-6)
    pooling = tmp_path / "1_Pooling" / "config.json"
    said = pooling.read_text()
    pooling.write_text(said.replace("false", "true"))
    refused(tmp_path, "1_Pooling", "pooling_mode")
    pooling.write_text(said)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[2]["type"] = "sentence_transformers.models.CNN"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    refused(tmp_path, "modules.json", "CNN")


@pytest.mark.parametrize(
    ("place", "shape"),
    [
        (Place.at("a"), (5, 3)),
        (Turned.at("a"), (5, 3)),
        (Turned.at("a"), (5,)),
        (Stacked.at("a", "b", "c"), (6, 3)),
        (Below.at("a", skip=2), (5, 3)),
        (Spread.at("a"), (5, 3)),
        (ByHead.at("a", "b", "c", n_heads=2), (18, 4)),
        (HeadRows.at("a", "b", n_heads=2), (2, 6)),
        (HeadRows.at("a", "b", n_heads=2), (3, 6)),
        (InThrees.at("a", n_heads=2), (18, 4)),
        (Spread.at("a", axis=1), (5, 3)),
        (Patch.at("a", channels=3), (5, 12)),
    ],
)
def test_writing_is_the_inverse_of_reading(place, shape):
    x = torch.randn(shape)
    theirs = place.write(x, place.names)
    assert set(theirs) == set(place.names)
    assert torch.equal(place.read(theirs.__getitem__, place.names, shape), x)


def test_what_has_no_place_must_be_zero():
    assert Nothing.at().write(torch.zeros(3), ()) == {}
    assert torch.equal(Nothing.at().read({}.__getitem__, (), (3,)), torch.zeros(3))
    x = torch.cat([torch.zeros(2), torch.arange(4.0)])
    theirs = BelowNothing.at("a", "b").write(x, ("a", "b"))
    assert torch.equal(BelowNothing.at("a", "b").read(theirs.__getitem__, ("a", "b"), (6,)), x)
    with pytest.raises(CheckpointError, match="zero"):
        BelowNothing.at("a", "b").write(x + 1, ("a", "b"))
    with pytest.raises(CheckpointError, match="zero"):
        Nothing.at().write(torch.ones(3), ())


def test_reading_a_folder_needs_no_library_of_theirs(folder):
    code = f"import sys, kinfolk as kf; kf.from_hf({str(folder)!r}); print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
