"""DeepSeek-V3 (latent attention, a shared expert, bias balancing) and DiffLlama (differential attention)."""

import dataclasses
import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.layers.feed_forwards.feed_forward import Gated
from kinfolk.layers.feed_forwards.gated_experts import GatedExperts, SigmoidTopK
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.differential_attention import DifferentialAttention
from kinfolk.layers.mixers.evolved import Branches
from kinfolk.layers.mixers.latent_attention import LatentAttention
from kinfolk.layers.norms.norm import RMSNorm
from kinfolk.layers.part import Part
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.positions.rope_scaling import YarnScaling
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.runs.formats.llama import LlamaLike, causal_heads, rope_values, rotary_of
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import Architecture, Misfit, layers, need, need_all
from kinfolk.runs.huggingface.places import Get, Place, Shape, Table


@dataclasses.dataclass(frozen=True)
class Vectors(Place):
    """Several vectors as the rows of a matrix."""

    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        return torch.stack([get(name) for name in names])

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: row.clone() for name, row in zip(names, x, strict=True)}


class DiffLlama(LlamaLike, model_type="diffllama"):
    """Ye et al. 2024, on LLaMA's body."""

    attention_kind = DifferentialAttention
    eps = 1e-5
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("DiffLlama")

    def attention(self, config: Config, layer: int) -> Attention:
        config.get("lambda_std_dev", 0.1)
        config.only("rms_norm_eps", 1e-5)
        plain = super().attention(config, layer)
        fields = {name: getattr(plain, name) for name in ("n_heads", "n_kv_heads", "d_head", "pattern", "position")}
        return DifferentialAttention(**fields, bias=plain.bias, start=0.8 - 0.6 * math.exp(-0.3 * layer))

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        return super().own(model, attention, mlp) | {"attention_bias": attention.bias}

    def body(self, model: Model) -> Table:
        names = tuple(f"layers.*.self_attn.lambda_{name}" for name in ("q1", "k1", "q2", "k2"))
        return {**super().body(model), "decoder.blocks.*.parts.0.factor_4K": Vectors.at(*names)}


class DeepseekV3(LlamaLike, model_type="deepseek_v3"):
    """DeepSeek-AI 2024, without the module that predicts a second token and without 8-bit weights."""

    refuses = "quantization_config"
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("DeepseekV3")

    def attention(self, config: Config, layer: int) -> LatentAttention:  # type: ignore[override]
        config.idle("num_key_value_heads", "head_dim", "qk_head_dim", "num_nextn_predict_layers")
        n_heads = config.number("num_attention_heads")
        layout: Literal["interleaved", "halves"] = "interleaved" if config.get("rope_interleave", True) else "halves"
        d_nope, d_rope = config.number("qk_nope_head_dim", 128), config.number("qk_rope_head_dim", 64)
        rotary, scale = _rotary(config, d_nope + d_rope)
        return LatentAttention(
            n_heads=n_heads,
            q_rank=config.get("q_lora_rank", 0) or 0,
            kv_rank=config.number("kv_lora_rank", 512),
            d_nope=d_nope,
            d_rope=d_rope,
            d_value=config.number("v_head_dim", 128),
            position=rotary.replace(layout=layout),
            # theirs has this whatever the configuration says
            norm=RMSNorm(eps=1e-6),
            bias=config.get("attention_bias", False),
            dropout=config.get("attention_dropout", 0.0),
            scale=scale,
        )

    def mlp(self, config: Config, layer: int) -> Part:
        config.fixed(norm_topk_prob=True, hidden_act="silu")
        config.idle("output_router_logits", "topk_method", "scoring_func", "moe_layer_freq", "ep_size")
        config.idle("aux_loss_alpha", "seq_aux")
        width, n_shared = config.number("moe_intermediate_size", 2048), config.number("n_shared_experts", 1)
        router = SigmoidTopK(
            k=config.number("num_experts_per_tok", 8),
            n_groups=config.number("n_group", 8),
            top_groups=config.number("topk_group", 4),
            scale=float(config.get("routed_scaling_factor", 2.5)),
        )
        experts = GatedExperts(n_experts=config.number("n_routed_experts", 256), d_ff=width, router=router)
        dense = Gated(d_ff=config.number("intermediate_size"), activation="swish")
        if layer < config.get("first_k_dense_replace", 3):
            return dense
        return Branches(parts=(experts, Gated(d_ff=width * n_shared, activation="swish")))

    def values(self, model: Model) -> dict[str, Any]:
        depth, attention = (
            need(Stack, model, "decoder"),
            need_all(LatentAttention, model, "decoder.blocks[*].parts[0]")[0],
        )
        experts, shared = _mixture(model)
        router = need(SigmoidTopK, experts, "router")
        if shared.d_ff % experts.d_ff:
            raise Misfit("the shared expert is a multiple of a routed one there", 3)
        rotary = need(Rotary, attention, "position")
        dense = [block.parts[1].d_ff for block in depth.blocks if isinstance(block.parts[1], Gated)]
        return self.sizes(model) | {
            "num_hidden_layers": depth.n_layers,
            "num_attention_heads": attention.n_heads,
            "num_key_value_heads": attention.n_heads,
            "intermediate_size": dense[0] if dense else experts.d_ff,
            "moe_intermediate_size": experts.d_ff,
            "n_routed_experts": experts.n_experts,
            "n_shared_experts": shared.d_ff // experts.d_ff,
            "num_experts_per_tok": router.k,
            "n_group": router.n_groups,
            "topk_group": router.top_groups,
            "routed_scaling_factor": router.scale,
            "first_k_dense_replace": len(dense),
            "q_lora_rank": attention.q_rank or None,
            "kv_lora_rank": attention.kv_rank,
            "qk_nope_head_dim": attention.d_nope,
            "qk_rope_head_dim": attention.d_rope,
            "v_head_dim": attention.d_value,
            "attention_bias": attention.bias,
            "attention_dropout": attention.dropout,
            "rope_interleave": rotary.layout == "interleaved",
            "rope_parameters": _rope(attention, rotary),
            "hidden_act": "silu",
            "max_position_embeddings": model.max_len,
            "rms_norm_eps": need(RMSNorm, model, "decoder.norm").eps,
        }

    def body(self, model: Model) -> Table:
        names = [f"mlp.experts.{e}" for e in range(_mixture(model)[0].n_experts)]
        q_rank = need(LatentAttention, model, "decoder.blocks[0].parts[0]").q_rank
        layer: Table = {
            "parts.0.q_down": "self_attn.q_a_proj",
            "parts.0.q_norm": "self_attn.q_a_layernorm",
            "parts.0.q_up": "self_attn.q_b_proj" if q_rank else "self_attn.q_proj",
            "parts.0.kv_down": "self_attn.kv_a_proj_with_mqa",
            "parts.0.kv_norm": "self_attn.kv_a_layernorm",
            "parts.0.kv_up": "self_attn.kv_b_proj",
            "parts.0.out": "self_attn.o_proj",
            "parts.1.widen": ("mlp.gate_proj", "mlp.up_proj"),
            "parts.1.narrow": "mlp.down_proj",
            "parts.1.parts.0.router.scores": "mlp.gate",
            "parts.1.parts.0.router.bias_E": "mlp.gate.e_score_correction_bias",
            "parts.1.parts.0.widen": tuple(f"{name}.{half}" for name in names for half in ("gate_proj", "up_proj")),
            "parts.1.parts.0.narrow": tuple(f"{name}.down_proj" for name in names),
            "parts.1.parts.1.widen": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
            "parts.1.parts.1.narrow": "mlp.shared_experts.down_proj",
            **self.norms,
        }
        return {
            "embedding.table": "embed_tokens",
            "decoder.norm": "norm",
            **layers("decoder.blocks.*", "layers.*", layer),
        }


def _rotary(config: Config, d_key: int) -> tuple[Rotary, float]:
    """Return the position, and the scale of scores: YaRN's factor falls on them where `mscale_all_dim` says so."""
    parameters = config.get("rope_parameters", {}) or config.get("rope_scaling", {}) or {}
    all_dim, rotary = parameters.get("mscale_all_dim"), rotary_of(config)
    scaling = rotary.scaling
    if not all_dim or not isinstance(scaling, YarnScaling):
        return rotary, 0.0
    if parameters.get("mscale", all_dim) != all_dim:
        raise config.refusal("mscale", parameters["mscale"], (all_dim,))
    scale = d_key**-0.5 * (0.1 * all_dim * math.log(scaling.factor) + 1.0) ** 2
    return rotary.replace(scaling=scaling.replace(length=1.0)), scale


def _rope(attention: LatentAttention, rotary: Rotary) -> dict[str, Any]:
    values, scaling = rope_values(rotary), rotary.scaling
    if attention.scale and isinstance(scaling, YarnScaling):
        root = math.sqrt(attention.scale * math.sqrt(attention.d_nope + attention.d_rope))
        values["mscale"] = values["mscale_all_dim"] = round((root - 1) / (0.1 * math.log(scaling.factor)), 6)
    return values


def _mixture(model: Model) -> tuple[GatedExperts, Gated]:
    """Return the routed and the shared experts of the first layer that has them."""
    mlps = [block.parts[1] for block in need(Stack, model, "decoder").blocks]
    both = next((one for one in mlps if isinstance(one, Branches)), None)
    if both is None or len(both.parts) != 2:
        raise Misfit("a layer of experts has routed ones and a shared one there", 3)
    return need(GatedExperts, both, "parts[0]"), need(Gated, both, "parts[1]")
