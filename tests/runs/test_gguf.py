"""GGUF files beside transformers' own reading of them: weights of every type, logits, and what is refused."""

import json

import numpy as np
import pytest
import tokenizers
import torch

import kinfolk as kf
from kinfolk.cli.main import main
from kinfolk.core.errors import CheckpointError
from kinfolk.data import Tokenizer
from kinfolk.runs.huggingface.gguf_file import unpack
from tests.runs.test_llama_formats import Wide

gguf = pytest.importorskip("gguf", reason="it writes these files")
transformers = pytest.importorskip("transformers")
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint  # noqa: E402

SIZE = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
SIZE |= {"num_hidden_layers": 2, "vocab_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
WORDS = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "gate_proj": "ffn_gate"}
WORDS |= {"up_proj": "ffn_up", "down_proj": "ffn_down", "input_layernorm": "attn_norm"}
WORDS |= {"post_attention_layernorm": "ffn_norm", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def original(family, **changes):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**(SIZE | {"rope_theta": 5e4} | changes))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return model.eval()


def written(model, path, kind="F32", also=lambda writer: None, **more):
    """Write a file as llama.cpp's converter does: queries and keys of "llama" with neighbouring channels in pairs."""
    config = model.config
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if arch == "qwen3":
        writer.add_key_length(config.head_dim)
    also(writer)
    for name, value in more.items():
        writer.add_string(name.replace("__", "."), value)
    weights = {
        name: x for name, x in model.state_dict().items() if not (config.tie_word_embeddings and "lm_head" in name)
    }
    for name, x in weights.items():
        stem, _, leaf = name.rpartition(".")
        rows = x.numpy()
        theirs = ENDS.get(stem)
        if theirs is None:
            number, part = stem.split(".")[2], stem.rpartition(".")[2]
            theirs = f"blk.{number}.{WORDS[part]}"
            if arch == "llama" and part in ("q_proj", "k_proj"):
                n = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
                rows = rows.reshape(n, 2, len(rows) // n // 2, -1).swapaxes(1, 2).reshape(rows.shape)
        quantised = getattr(gguf.GGMLQuantizationType, kind if rows.ndim == 2 else "F32")
        packed = gguf.quants.quantize(np.ascontiguousarray(rows), quantised)
        writer.add_tensor(f"{theirs}.{leaf}", packed, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("family", "kind", "changes"),
    [
        *(("Llama", kind, {}) for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")),
        ("Llama", "F32", {"tie_word_embeddings": True}),
        ("Qwen2", "F32", {}),
        ("Qwen3", "F32", {"head_dim": 32}),
    ],
)
def test_a_file_is_read_as_transformers_reads_it(family, kind, changes, tmp_path):
    model = original(family, **changes)
    written(model, tmp_path / "model.gguf", kind)
    ours = kf.from_hf(tmp_path / "model.gguf").double().eval()
    read = load_gguf_checkpoint(tmp_path / "model.gguf", return_tensors=True, model_to_load=model)
    with Wide():
        theirs = type(model)(model.config).double().eval()
        theirs.load_state_dict(read["tensors"], strict=not changes.get("tie_word_embeddings"))
        tokens = torch.randint(0, 96, (2, 19))
        wanted = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, wanted, rtol=1e-9, atol=1e-9)
    if kind == "F32":
        with torch.no_grad():
            torch.testing.assert_close(ours.float()(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_weights_are_the_same_bits(tmp_path):
    model = original("Llama")
    written(model, tmp_path / "model.gguf")
    unpack(tmp_path / "model.gguf", tmp_path / "folder")
    from safetensors.torch import load_file

    read = load_file(tmp_path / "folder" / "model.safetensors")
    assert read.keys() == model.state_dict().keys()
    assert all(torch.equal(read[name], x) for name, x in model.state_dict().items())
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert {name: config[name] for name in SIZE} == pytest.approx(SIZE)


def test_what_cannot_be_expressed_is_refused_by_name(tmp_path):
    model = original("Llama")
    written(model, tmp_path / "scaled.gguf", llama__rope__scaling__type="yarn")
    with pytest.raises(CheckpointError, match=r"llama.rope.scaling.type = 'yarn' cannot be expressed"):
        kf.from_hf(tmp_path / "scaled.gguf")
    written(model, tmp_path / "odd.gguf", llama__expert_count="8")
    with pytest.raises(CheckpointError, match=r"llama.expert_count cannot be expressed"):
        kf.from_hf(tmp_path / "odd.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(CheckpointError, match=r"broken.gguf: cannot be read as GGUF"):
        kf.from_hf(tmp_path / "broken.gguf")
    writer = gguf.GGUFWriter(tmp_path / "mamba.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"general.architecture = 'mamba' cannot be imported"):
        kf.from_hf(tmp_path / "mamba.gguf")


def test_the_command_imports_a_file_with_its_tokenizer_and_template(tmp_path, capsys):
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    ends = ["<|endoftext|>", "<|im_end|>"]
    how = tokenizers.trainers.BpeTrainer(vocab_size=280, special_tokens=ends, initial_alphabet=alphabet)
    pairs.train_from_iterator(["the cat sat on the mat", "the dog ate the cat"], how)
    learned = json.loads(pairs.to_str())["model"]
    words = sorted(learned["vocab"], key=learned["vocab"].get)
    model = original("Qwen2", vocab_size=len(words))

    def add_tokenizer(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(words)
        writer.add_token_merges([" ".join(pair) for pair in learned["merges"]])
        writer.add_token_types([3 if word in ends else 1 for word in words])
        writer.add_eos_token_id(1)
        writer.add_chat_template("{{ messages[0]['content'] }}")

    written(model, tmp_path / "model.gguf", also=add_tokenizer)
    assert main(["import", str(tmp_path / "model.gguf"), "--out", str(tmp_path / "run")]) == 0
    assert "Qwen2ForCausalLM" in capsys.readouterr().out
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    ours = Tokenizer.load(tmp_path / "run" / "tokenizer.json")
    for text in ("the cat sat", "Ünïcode 12345, twice  spaced\n", ""):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert (tmp_path / "run" / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"
    assert main(["generate", str(tmp_path / "run"), "--prompt", "the", "--max-new", "3", "--greedy"]) == 0


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A run of a Llama with SentencePiece's tokens: bytes, BOS and EOS, and no token for padding."""
    folder = tmp_path_factory.mktemp("pieces")
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    words = ["<unk>", "<s>", "</s>", *bytes_, *"▁abcdefghijklmnopqrstuvwxyz", "th", "the", "▁the"]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(words) - 259)]

    def add_tokenizer(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(words)
        writer.add_token_scores([-float(i) for i in range(len(words))])
        writer.add_token_types(types)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    model = original("Llama", vocab_size=len(words), bos_token_id=1, eos_token_id=2)
    written(model, folder / "model.gguf", also=add_tokenizer)
    assert main(["import", str(folder / "model.gguf"), "--out", str(folder / "run")]) == 0
    return folder, model


def test_a_prompt_begins_with_bos_as_the_makers_of_the_file_begin_texts(pieces, capsys):
    folder, model = pieces
    run = kf.Run.open(folder / "run")
    assert run.tokenizer.opening == [1]
    assert main(["generate", str(folder / "run"), "--prompt", "the cat", "--max-new", "8", "--greedy"]) == 0
    text = capsys.readouterr().out
    ids = torch.tensor([[1, *run.tokenizer.encode("the cat")]])
    with torch.no_grad():
        more = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=2)[0, ids.shape[1] :].tolist()
    more = more[: more.index(2)] if 2 in more else more
    assert text.strip() == run.tokenizer.decode([*ids[0, 1:].tolist(), *more]).strip()


def test_padding_has_a_row_where_the_makers_have_no_token_for_it(pieces, tmp_path, capsys):
    folder, _ = pieces
    run = kf.Run.open(folder / "run")
    assert run.tokenizer.pad == 2 == run.generation.pad_id < run.recipe.model.vocab_size
    (tmp_path / "text.txt").write_text("the cat and the dog\n\n" * 40)
    assert main(["eval", str(folder / "run"), "--data", str(tmp_path / "text.txt"), "--json"]) == 0
    assert "next-token" in capsys.readouterr().out
