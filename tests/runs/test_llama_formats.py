"""Decoders after 2022 against transformers with copied weights: logits, gradients, both ways, in float64."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import kinfolk as kf

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 56,
    "vocab_size": 61,
    "max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 5e5,
}
LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
CASES = {
    "llama": ("Llama", {"num_key_value_heads": 2}),
    "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-wide-heads": ("Llama", {"head_dim": 16, "num_key_value_heads": 1}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 5}),
    "mistral-whole": ("Mistral", {"num_key_value_heads": 2, "sliding_window": None}),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
    "olmo2": ("Olmo2", {"num_key_value_heads": 4}),
    "gemma2": (
        "Gemma2",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
            "attn_implementation": "eager",
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": 5,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "mixtral": ("Mixtral", {"num_key_value_heads": 2, "num_local_experts": 5}),
    "gpt-oss": (
        "GptOss",
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": 5,
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "rope_parameters": YARN | {"truncate": False},
        },
    ),
    "deepseek-v3": ("DeepseekV3", LATENT),
    "deepseek-v3-yarn": (
        "DeepseekV3",
        LATENT | {"q_lora_rank": None, "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}},
    ),
    "differential": ("DiffLlama", {"num_key_value_heads": 2}),
    "smollm3": ("SmolLM3", {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}),
    "gpt-neox": ("GPTNeoX", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "mamba": ("Mamba", {"state_size": 5, "expand": 2}),
    "mamba-rank": ("Mamba", {"state_size": 3, "time_step_rank": 7, "tie_word_embeddings": False}),
    "mamba2": ("Mamba2", {"state_size": 5, "num_heads": 6, "head_dim": 16, "n_groups": 1, "chunk_size": 8}),
    "phi": ("Phi", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
}

# configurations that do not know attention
RECURRENT = dict.fromkeys(("Mamba", "Mamba2"), ("hidden_size", "num_hidden_layers", "vocab_size"))


class Wide(TorchFunctionMode):
    """Their norms and rotary tables are computed in float32 whatever the weights are: here in float64 instead."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            return args[0].double()
        if func in (Tensor.to, Tensor.type):
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        if kwargs.get("dtype") is torch.float32:
            kwargs = kwargs | {"dtype": torch.float64}
        return func(*args, **kwargs)


def original(name: str, **changes: object) -> torch.nn.Module:
    family, own = CASES[name]
    config = f"{family}TextConfig" if family == "Gemma3" else f"{family}Config"
    small = {key: n for key, n in SMALL.items() if family not in RECURRENT or key in RECURRENT[family]}
    torch.manual_seed(0)
    with Wide():
        model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, config)(**(small | own | changes)))
    if family.startswith("Gemma"):
        # kept in float32, whatever the weights are
        model.model.embed_tokens.embed_scale = torch.tensor(SMALL["hidden_size"] ** 0.5, dtype=torch.float64)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            # theirs is read in float32
            buffer.copy_(torch.randint(-4, 5, buffer.shape) / 16)
    if hasattr(model, "set_experts_implementation"):
        # the grouped product knows no float64
        model.set_experts_implementation("eager")
    return model.double().eval()


def eager(theirs: torch.nn.Module) -> dict[str, str]:
    return {"experts_implementation": "eager"} if "experts" in str(type(theirs.config).__annotations__) else {}


@pytest.mark.parametrize("name", CASES)
def test_same_logits_and_gradients_both_ways(name: str, tmp_path) -> None:
    theirs = original(name)
    theirs.save_pretrained(tmp_path / "hf")
    # in training a backward pass moves the biases that balance experts
    ours = kf.from_hf(tmp_path / "hf").eval()
    tokens = torch.randint(3, 61, (2, 23))
    with Wide():
        want = theirs(tokens).logits
    found = ours(tokens).logits
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(want)
    (want * weight).sum().backward()
    (found * weight).sum().backward()
    reference = theirs.get_input_embeddings().weight.grad
    torch.testing.assert_close(ours.embedding.weight.grad, reference, rtol=1e-8, atol=1e-8)
    kf.to_hf(ours, tmp_path / "back")
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype=torch.float64, **eager(theirs)
    ).eval()
    # without a window Mistral is Llama, under which name it is written
    assert type(again) is type(theirs) or name == "mistral-whole"
    with Wide():
        torch.testing.assert_close(again(tokens).logits, want, rtol=1e-5, atol=1e-5)
    weights = theirs.state_dict()
    assert all(torch.equal(x, weights[key]) for key, x in again.state_dict().items())


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "gemma2", "gemma3", "gpt-oss", "mixtral", "deepseek-v3", "differential", "qwen3"]
)
def test_greedy_text_is_theirs(name: str, tmp_path) -> None:
    theirs = original(name)
    theirs.save_pretrained(tmp_path / "hf")
    prompt = torch.randint(3, 61, (1, 7))
    theirs.generation_config.eos_token_id = theirs.generation_config.pad_token_id = None
    want = theirs.generate(prompt, max_new_tokens=20, do_sample=False)
    found = kf.generate(kf.from_hf(tmp_path / "hf"), prompt[0].tolist(), max_new=20, greedy=True)
    assert torch.as_tensor(found).flatten().tolist() == want[0].tolist()


def test_old_words_for_rotary_positions_are_read(tmp_path) -> None:
    """Configurations before transformers 5 say rope_theta and rope_scaling."""
    theirs = original("llama-llama3")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokens = torch.randint(0, 61, (1, 40))
    with Wide():
        want = theirs(tokens).logits
    torch.testing.assert_close(kf.from_hf(tmp_path)(tokens).logits, want, rtol=1e-9, atol=1e-9)


def test_an_unknown_scaling_is_refused_by_name(tmp_path) -> None:
    original("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(kf.KinfolkError, match="rope_type = 'longrope' cannot be expressed"):
        kf.from_hf(tmp_path)
