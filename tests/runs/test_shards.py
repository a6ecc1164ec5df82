"""Checkpoints after 2022 in several files of bfloat16: read as one file, and with the values that bfloat16 has."""

import json

import pytest
import torch
from safetensors import safe_open

import kinfolk as kf
from tests.runs.test_llama_formats import original

NAMES = ["llama", "qwen3", "gemma2", "gemma3", "gpt-oss", "mixtral", "deepseek-v3", "differential", "mamba2", "phi"]


@pytest.mark.parametrize("name", NAMES)
def test_shards_of_bfloat16_are_read(name, tmp_path):
    theirs = original(name).bfloat16()
    theirs.save_pretrained(tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    tokens = torch.randint(3, 61, (2, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, shards = (kf.from_hf(tmp_path / kind).eval() for kind in ("whole", "shards"))
        assert torch.equal(shards(tokens).logits, whole(tokens).logits)
    # what they store is what they mean: their weights, widened, are ours
    table = theirs.get_input_embeddings().weight.to(shards.embedding.weight.dtype)
    assert torch.equal(shards.embedding.weight, table)
    kf.to_hf(shards, tmp_path / "back")
    # and are written back as they came, but for buffers that count
    with safe_open(tmp_path / "back" / "model.safetensors", framework="pt") as file:
        stored = {file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
    assert torch.bfloat16 in stored
    assert torch.float32 not in stored
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "bfloat16"
    again = kf.from_hf(tmp_path / "back").eval()
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), shards.parameters(), strict=True))
