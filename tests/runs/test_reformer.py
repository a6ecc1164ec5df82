"""Reformer against the class that writes it, whose hashes are the same where a seed is given."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

import kinfolk as kf
from kinfolk.models.cost import cost
from kinfolk.runs.huggingface.folder import open_folder
from tests.runs.test_parity import V, ours, same, their_model, theirs

REFORMER = {"hidden_size": 24, "num_attention_heads": 3, "attention_head_size": 8, "feed_forward_size": 40}
REFORMER |= {"vocab_size": V, "max_position_embeddings": 48, "attn_layers": ["local", "lsh", "local", "lsh"]}
REFORMER |= {"axial_pos_shape": [6, 8], "axial_pos_embds_dim": [10, 14], "lsh_attn_chunk_length": 8, "num_buckets": 4}
REFORMER |= {"local_attn_chunk_length": 4, "is_decoder": True, "hash_seed": 5, "num_hashes": 1, "use_cache": False}
ONLY = {"attn_layers": ["lsh", "lsh"], "is_decoder": False, "attention_head_size": 5, "num_buckets": [2, 4]}


@pytest.mark.parametrize("length", [24, 40, 4])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ReformerModelWithLMHead", {}),
        ("ReformerModelWithLMHead", {"axial_pos_embds": False, "hidden_act": "gelu", "layer_norm_eps": 1e-3}),
        ("ReformerModelWithLMHead", {"attn_layers": ["local"] * 3, "local_num_chunks_before": 2}),
        ("ReformerModel", ONLY),
        ("ReformerForSequenceClassification", ONLY | {"num_labels": 5}),
        ("ReformerForQuestionAnswering", ONLY),
    ],
)
def test_a_reformer_with_a_seed_is_read_and_written_to_the_same_numbers(name, changes, length, tmp_path, monkeypatch):
    """Whole chunks and one round of hashes, as `docs/decisions.md` says; directions are drawn in single precision."""
    draw = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *a, dtype=None, **more: draw(*a, **more).to(dtype))
    original = their_model(name, REFORMER | changes)
    if hasattr(original, "lm_head"):
        # their class has it and does not add it
        torch.nn.init.zeros_(original.lm_head.bias)
    original.save_pretrained(tmp_path / "theirs")
    tokens = torch.randint(3, V, (2, length), generator=torch.Generator().manual_seed(1))
    keep = torch.ones_like(tokens, dtype=torch.bool)
    with torch.random.fork_rng(devices=[]):
        wanted = theirs(original, tokens, keep)
    imported = open_folder(tmp_path / "theirs")
    same(ours(imported.model, tokens, keep), wanted, keep, 1e-9)
    assert cost(imported.model.spec, 16).params == imported.model.n_params
    kf.to_hf(imported.model, tmp_path / "again", model_type="reformer", also=imported.also)
    with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
        again, report = type(original).from_pretrained(
            tmp_path / "again", dtype=torch.float64, output_loading_info=True
        )
        assert not any(report.values()), report
        # theirs makes axial positions in single precision
        same(theirs(again.double().eval(), tokens, keep), wanted, keep, 1e-6)
    assert open_folder(tmp_path / "again").model.spec == imported.model.spec


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"is_decoder": False}, "is_decoder = False"),
        ({"lsh_num_chunks_before": 2}, "lsh_num_chunks_before = 2"),
        ({"lsh_num_chunks_after": 1}, "lsh_num_chunks_after = 1"),
    ],
)
def test_what_a_reformer_cannot_express_is_refused(changes, words, tmp_path):
    their_model("ReformerModel", REFORMER | changes).save_pretrained(tmp_path)
    with pytest.raises(kf.KinfolkError, match=words):
        kf.from_hf(tmp_path)


def test_a_folder_of_2020_is_read(tmp_path):
    """Keys that no class reads any more, and buffers of masks beside the weights."""
    original = their_model("ReformerModelWithLMHead", REFORMER)
    torch.nn.init.zeros_(original.lm_head.bias)
    original.save_pretrained(tmp_path)
    wanted = kf.from_hf(tmp_path).state_dict()
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_chunks_before": 1, "num_chunks_after": 0, "intermediate_size": 3072, "type_vocab_size": 2}
    config |= {"attention_probs_dropout_prob": 0.1, "seed": 7, "sinusoidal_pos_embds": False, "output_past": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    for name in ("self_mask_value_float16", "self_mask_value_float32", "mask_value_float16", "mask_value_float32"):
        tensors[f"reformer.encoder.layers.0.attention.self_attention.{name}"] = torch.tensor(-1e4)
    save_file(tensors, tmp_path / "model.safetensors")
    found = open_folder(tmp_path)
    assert not found.left_out
    for name, x in found.model.state_dict().items():
        assert torch.equal(x, wanted[name])
