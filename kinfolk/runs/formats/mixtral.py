"""Decoders with LLaMA's block and gated experts: Mixtral, gpt-oss."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.layers.feed_forwards.gated_experts import GatedExperts, TopK
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.softmax import Sink
from kinfolk.layers.part import Part
from kinfolk.models.model import Model
from kinfolk.runs.formats.llama import LlamaLike, causal_heads, window_of
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, need
from kinfolk.runs.huggingface.places import Get, Place, Shape, Table


class Mixtral(LlamaLike, model_type="mixtral"):
    """Jiang et al. 2024. Their balancing loss counts all layers at once, ours each by itself."""

    mlp_kind = GatedExperts
    eps = 1e-5
    slides = True
    refuses = "router_jitter_noise"
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Mixtral")

    def mlp(self, config: Config, layer: int) -> Part:
        config.only("router_jitter_noise", 0.0)
        config.get("output_router_logits", False)
        return GatedExperts(
            n_experts=config.number("num_local_experts", 8),
            d_ff=config.number("intermediate_size"),
            activation=config.choice("hidden_act", ACTIVATIONS, "silu"),
            router=TopK(k=config.number("num_experts_per_tok", 2), balance=config.get("router_aux_loss_coef", 0.001)),
        )

    def own(self, model: Model, attention: Attention, mlp: GatedExperts) -> dict[str, Any]:  # type: ignore[override]
        router = need(TopK, model, "decoder.blocks[0].parts[1].router")
        return super().own(model, attention, mlp) | {  # type: ignore[arg-type]
            "num_local_experts": mlp.n_experts,
            "num_experts_per_tok": router.k,
            "router_aux_loss_coef": router.balance,
            "sliding_window": window_of(attention.pattern),
        }

    def mlp_table(self, model: Model) -> Table:
        mlp = need(GatedExperts, model, "decoder.blocks[0].parts[1]")
        names = [f"block_sparse_moe.experts.{e}" for e in range(mlp.n_experts)]
        return {
            "parts.1.router.scores": "block_sparse_moe.gate",
            "parts.1.widen": tuple(f"{name}.{half}" for name in names for half in ("w1", "w3")),
            "parts.1.narrow": tuple(f"{name}.w2" for name in names),
        }


@dataclasses.dataclass(frozen=True)
class Interleaved(Place):
    """Maps of all experts as [experts, in, out], gate and value in turn in the last axis where `gated`."""

    n: int = 1
    gated: bool = False
    copies: ClassVar[bool] = True

    def read(self, get: Get, names: tuple[str, ...], shape: Shape) -> Tensor:
        x = get(names[0])
        x = torch.cat([x[..., ::2], x[..., 1::2]], -1) if self.gated else x
        return (x.mT if len(shape) > 1 else x).flatten(0, 1)

    def write(self, x: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        x = x.unflatten(0, (self.n, -1))
        x = x.mT if x.ndim > 2 else x
        x = torch.stack(x.chunk(2, -1), -1).flatten(-2) if self.gated else x
        return {names[0]: x.contiguous()}


class GptOss(LlamaLike, model_type="gpt_oss"):
    """OpenAI 2025, in 16 or 32 bits: weights in MXFP4 have to be dequantised first."""

    mlp_kind = GatedExperts
    eps = 1e-5
    slides = True
    refuses = "quantization_config"
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("GptOss")

    def mlp(self, config: Config, layer: int) -> Part:
        config.fixed(hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=7.0)
        config.get("output_router_logits", False)
        k, balance = config.number("num_experts_per_tok", 4), config.get("router_aux_loss_coef", 0.9)
        return GatedExperts(
            n_experts=config.number("num_local_experts", 32),
            d_ff=config.number("intermediate_size"),
            activation="clamped-swish",
            bias=True,
            router=TopK(k=k, bias=True, balance=balance),
        )

    def attention(self, config: Config, layer: int) -> Attention:
        return super().attention(config, layer).replace(softmax=Sink())

    def activated(self, mlp: Any) -> str:
        return "silu"  # it is clamped all the same

    def own(self, model: Model, attention: Attention, mlp: GatedExperts) -> dict[str, Any]:  # type: ignore[override]
        router = need(TopK, model, "decoder.blocks[0].parts[1].router")
        windows = self.sliding(model)
        return super().own(model, attention, mlp) | {  # type: ignore[arg-type]
            "num_local_experts": mlp.n_experts,
            "num_experts_per_tok": router.k,
            "router_aux_loss_coef": router.balance,
            "layer_types": windows["layer_types"],
            "sliding_window": windows["sliding_window"],
            "attention_bias": attention.bias,
        }

    def mlp_table(self, model: Model) -> Table:
        mlp = need(GatedExperts, model, "decoder.blocks[0].parts[1]")
        n = mlp.n_experts
        return {
            "parts.0.softmax.sink_H": "self_attn.sinks",
            "parts.1.router.scores": "mlp.router",
            "parts.1.widen.weight": Interleaved.at("mlp.experts.gate_up_proj", n=n, gated=True),
            "parts.1.widen.bias": Interleaved.at("mlp.experts.gate_up_proj_bias", n=n, gated=True),
            "parts.1.narrow.weight": Interleaved.at("mlp.experts.down_proj", n=n),
            "parts.1.narrow.bias": Interleaved.at("mlp.experts.down_proj_bias", n=n),
        }
