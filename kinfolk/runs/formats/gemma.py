"""Gemma 2 and 3: LLaMA's block with norms on both sides of every part, local and global layers, softcaps."""

from typing import Any, ClassVar

from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Gated
from kinfolk.layers.heads.head import Head, LMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.softmax import PlainSoftmax, Softcap
from kinfolk.layers.norms.norm import Norm, RMSNorm
from kinfolk.layers.norms.sandwich_norm import SandwichNorm
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.residual import Residual
from kinfolk.models.model import Model
from kinfolk.ops.patterns.leaves import Causal, Window
from kinfolk.runs.formats.llama import FULL, SLIDING, LlamaLike, causal_heads, rope_values, rotary_of, window_of
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import Architecture, need
from kinfolk.runs.huggingface.places import Table


class Gemma(LlamaLike):
    """What Gemma 2 and 3 share: norms with (1 + w) on both sides of every part, and layers of two types."""

    activation = "hidden_activation"
    every: ClassVar[int] = 6
    norms: ClassVar[Table] = {
        "residuals.0.before": "input_layernorm",
        "residuals.0.after": "post_attention_layernorm",
        "residuals.1.before": "pre_feedforward_layernorm",
        "residuals.1.after": "post_feedforward_layernorm",
    }

    def norm(self, config: Config) -> RMSNorm:
        return super().norm(config).replace(gain="one-plus")

    def residual(self, norm: Norm) -> Residual:
        return SandwichNorm(before=norm, after=norm)

    def rotary(self, config: Config, local: bool) -> Rotary:
        """Return the position of a local or global layer."""
        return rotary_of(config)

    def attention(self, config: Config, layer: int) -> Attention:
        every = config.get("sliding_window_pattern", config.get("_sliding_window_pattern", self.every))
        kinds = config.get("layer_types", None)
        local = kinds[layer] == SLIDING if kinds else bool((layer + 1) % every)
        attention, scalar = self.plain(config), config.get("query_pre_attn_scalar", 256)
        width = attention.d_head or config.number("hidden_size") // attention.n_heads
        window, cap = config.number("sliding_window", 4096), config.get("attn_logit_softcapping", None)
        return attention.replace(
            position=self.rotary(config, local),
            pattern=Causal() & Window(left=window - 1) if local else Causal(),
            scale=0.0 if scalar == width else float(scalar) ** -0.5,
            softmax=Softcap(cap=float(cap)) if cap else PlainSoftmax(),
        )

    def model(self, config: Config, head: Head) -> Model:
        config.only("use_bidirectional_attention", False, None)
        if "hidden_activation" not in config.values:
            config.values["hidden_activation"] = config.get("hidden_act", "gelu_pytorch_tanh")
        cap = config.get("final_logit_softcapping", None)
        head = head.replace(softcap=float(cap or 0.0)) if isinstance(head, LMHead) else head
        return super().model(config, head).replace(embedding=Tokens(scale="sqrt"))

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        attentions, head = self.attentions(model), model.head
        return {
            **super().own(model, attention, mlp),
            "layer_types": [SLIDING if window_of(one.pattern) else FULL for one in attentions],
            "sliding_window": next((w for one in attentions if (w := window_of(one.pattern))), 4096),
            "query_pre_attn_scalar": round(attention.scale**-2)
            if attention.scale
            else attention.d_head or model.d_model // attention.n_heads,
            "attention_bias": attention.bias,
            "attn_logit_softcapping": attention.softmax.cap if isinstance(attention.softmax, Softcap) else None,
            "final_logit_softcapping": (head.softcap or None) if isinstance(head, LMHead) else None,
        }


class Gemma2(Gemma, model_type="gemma2"):
    """Gemma Team 2024."""

    every = 2
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Gemma2")


class Gemma3(Gemma, model_type="gemma3_text"):
    """Gemma Team 2025, the language model."""

    qk_norm = True
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Gemma3")

    def rotary(self, config: Config, local: bool) -> Rotary:
        base = config.get("rope_local_base_freq", 10000.0) if local else 1e6
        if local and "rope_parameters" not in config.values:
            # older files name the local base apart, and scale the global rotation only
            return Rotary(base=base, layout="halves")
        return rotary_of(config, SLIDING if local else FULL, base)

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        attentions = self.attentions(model)
        kinds = [SLIDING if window_of(one.pattern) else FULL for one in attentions]
        rope = {
            kind: rope_values(need(Rotary, one, "position"))
            for kind, one in zip(reversed(kinds), reversed(attentions), strict=True)
        }
        usual = {SLIDING: Rotary(layout="halves"), FULL: Rotary(base=1e6, layout="halves")}
        types = {kind: rope.get(kind, rope_values(usual[kind])) for kind in (SLIDING, FULL)}
        return super().own(model, attention, mlp) | {"rope_parameters": types}
