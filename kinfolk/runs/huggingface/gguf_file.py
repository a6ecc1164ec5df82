"""GGUF files (llama.cpp): a Llama-like model in one file becomes a folder of config.json and safetensors.

Names of tensors and metadata follow the format's published specification; the package gguf reads the file and
dequantises. Rows of queries and keys of the architecture "llama" are stored for rotation by neighbouring channels.
"""

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from kinfolk.core.errors import CheckpointError, suggest
from kinfolk.data.tokenizers.files import around

SUFFIX = ".gguf"
FLOATS = {"F32": torch.float32, "F16": torch.float16}
"""Types of numbers that are kept; all others become float32."""

ARCHITECTURES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.*.attn_norm": "model.layers.*.input_layernorm",
    "blk.*.ffn_norm": "model.layers.*.post_attention_layernorm",
    "blk.*.attn_q": "model.layers.*.self_attn.q_proj",
    "blk.*.attn_k": "model.layers.*.self_attn.k_proj",
    "blk.*.attn_v": "model.layers.*.self_attn.v_proj",
    "blk.*.attn_output": "model.layers.*.self_attn.o_proj",
    "blk.*.attn_q_norm": "model.layers.*.self_attn.q_norm",
    "blk.*.attn_k_norm": "model.layers.*.self_attn.k_norm",
    "blk.*.ffn_gate": "model.layers.*.mlp.gate_proj",
    "blk.*.ffn_up": "model.layers.*.mlp.up_proj",
    "blk.*.ffn_down": "model.layers.*.mlp.down_proj",
}
"""Their names of tensors, without the leaf, and those of a folder; a star is the number of a layer."""
NUMBERS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
IDLE = ("vocab_size", "rope.dimension_count", "rope.freq_base", "attention.value_length", "rope.scaling.type")
"""Keys of an architecture that are read elsewhere or follow from others."""


def unpack(path: str | Path, folder: str | Path) -> None:
    """Write a GGUF file as a folder: config.json, model.safetensors and, with transformers, tokenizer.json."""
    path, folder = Path(path), Path(folder)
    with _opened(path) as reader:
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = config_of(fields, path)
        tensors = dict(_tensors(reader, config, path))
    tied = "lm_head.weight" not in tensors
    config |= {"tie_word_embeddings": tied, "vocab_size": len(tensors["model.embed_tokens.weight"])}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if "tokenizer.ggml.tokens" in fields:
        _write_tokenizer(path, folder)
        # llama.cpp's default is to begin texts with BOS where the pieces are SentencePiece's
        if fields.get("tokenizer.ggml.add_bos_token", fields.get("tokenizer.ggml.model") == "llama"):
            _begin_texts(folder / "tokenizer.json", fields.get("tokenizer.ggml.bos_token_id"))


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give a folder: the path itself, or what a GGUF file holds, unpacked for as long as it is needed."""
    if path.suffix != SUFFIX or not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        unpack(path, folder)
        yield Path(folder)


def config_of(fields: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the configuration that a file's metadata says; a key that would change the network is refused by name."""
    kind = fields.get("general.architecture")
    if kind not in ARCHITECTURES:
        hint = suggest(str(kind), ARCHITECTURES)
        raise CheckpointError(f"{path}: general.architecture = {kind!r} cannot be imported{hint}")
    own = {name.removeprefix(f"{kind}."): value for name, value in fields.items() if name.startswith(f"{kind}.")}
    scaling = own.get("rope.scaling.type", "none")
    unknown = sorted(own.keys() - NUMBERS.keys() - set(IDLE))
    if scaling != "none" or unknown:
        odd = f"{kind}.rope.scaling.type = {scaling!r}" if scaling != "none" else f"{kind}.{unknown[0]}"
        raise CheckpointError(f"{path}: {odd} cannot be expressed; import the folder that the file was made from")
    missing = [name for name in ("block_count", "embedding_length", "attention.head_count") if name not in own]
    if missing:
        raise CheckpointError(f"{path}: {kind}.{missing[0]} is missing")
    config = {theirs: own[name] for name, theirs in NUMBERS.items() if name in own}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": own.get("rope.freq_base", 10000.0)}
    for role in ("bos", "eos", "padding"):
        number = fields.get(f"tokenizer.ggml.{role}_token_id")
        config |= {} if number is None else {f"{role.replace('padding', 'pad')}_token_id": number}
    return {"model_type": kind, "architectures": [f"{ARCHITECTURES[kind]}ForCausalLM"], **config}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise CheckpointError(f"{path}: GGUF files need the extra 'gguf': pip install kinfolk[gguf]") from None
    try:
        reader = GGUFReader(path)
    # a damaged file may fail anywhere in its header
    except Exception as error:
        raise CheckpointError(f"{path}: cannot be read as GGUF: {error}") from None
    yield reader


def _tensors(reader: Any, config: Mapping[str, Any], path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from gguf.quants import dequantize

    n_heads = config["num_attention_heads"]
    shared = {"attn_q": n_heads, "attn_k": config.get("num_key_value_heads", n_heads)}
    for tensor in reader.tensors:
        stem, _, leaf = tensor.name.rpartition(".")
        pattern = re.sub(r"\.\d+\.", ".*.", stem)
        if pattern not in TENSORS:
            raise CheckpointError(f"{path}: tensor {tensor.name} has no place in {config['model_type']!r}")
        kind = tensor.tensor_type.name
        try:
            array = np.asarray(tensor.data if kind in FLOATS else dequantize(tensor.data, tensor.tensor_type))
        except NotImplementedError:
            raise CheckpointError(f"{path}: {tensor.name}: type {kind} cannot be dequantised") from None
        part = pattern.rpartition(".")[2]
        if config["model_type"] == "llama" and part in shared:
            array = halves(array, shared[part])
        number = re.search(r"\.(\d+)\.", stem)
        name = TENSORS[pattern].replace("*", number[1] if number else "")
        yield f"{name}.{leaf}", torch.from_numpy(np.array(array)).contiguous()


def halves(rows: NDArray[Any], n_heads: int) -> NDArray[Any]:
    """Reorder the rows of each head: channels rotated together are neighbours there, half a head apart here."""
    pairs = rows.reshape(n_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _write_tokenizer(path: Path, folder: Path) -> None:
    """Write the tokenizer, its roles and its chat template, as transformers makes them of a file's metadata."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return
    try:
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
    # what a vocabulary may lack is not listed anywhere
    except Exception as error:
        raise CheckpointError(f"{path}: its tokenizer cannot be read: {error}") from None


def _begin_texts(file: Path, bos: int | None) -> None:
    """Let a tokenizer put BOS before a text, which transformers leaves out when it reads a GGUF file."""
    if bos is None or not file.is_file():
        return
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    name = tokenizer.id_to_token(int(bos))
    if name is not None and len(tokenizer.encode("a").ids) == len(tokenizer.encode("a", add_special_tokens=False).ids):
        around(tokenizer, f"{name} $A", name)
        tokenizer.save(str(file))
