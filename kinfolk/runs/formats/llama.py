"""LLaMA and the decoders with its block: Mistral, Qwen2, Qwen3, OLMo 2, Gemma 3, SmolLM3."""

from typing import Any, ClassVar, Literal

from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Gated
from kinfolk.layers.heads.head import Head, LMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.norms.norm import NoNorm, Norm, RMSNorm
from kinfolk.layers.norms.sandwich_norm import SandwichNorm
from kinfolk.layers.part import Part
from kinfolk.layers.positions.position import NoPosition
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.positions.rope_scaling import LinearScaling, Llama3Scaling, NoScaling, RopeScaling, YarnScaling
from kinfolk.layers.residuals.residual import PreNorm, Residual
from kinfolk.models.block import Block
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.algebra import Both
from kinfolk.ops.patterns.leaves import Causal, Pattern, Window
from kinfolk.runs.formats.bert import by_last_token
from kinfolk.runs.formats.gpt import lm_values, tied_head
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import (
    ACTIVATIONS,
    Architecture,
    Format,
    Misfit,
    layers,
    need,
    need_all,
    their_activation,
)
from kinfolk.runs.huggingface.places import PlacedRows, Table

FULL, SLIDING = "full_attention", "sliding_attention"


def rotary_of(config: Config, kind: str = "", base: float = 10000.0) -> Rotary:
    """Return the rotary position that a configuration says, in the new words (`rope_parameters`) or the old ones.

    kind: the type of layer, where types have parameters of their own. base: where a configuration says none.
    """
    stated = config.get("rope_parameters", {})
    stated = stated.get(kind, stated) if kind and kind in stated else stated
    old = config.get("rope_scaling", {}) if not stated else {}
    parameters = {"rope_theta": config.get("rope_theta", base), **old, **stated}
    share = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    return Rotary(
        base=float(parameters["rope_theta"]), layout="halves", share=float(share), scaling=_scaling(config, parameters)
    )


def _scaling(config: Config, parameters: dict[str, Any]) -> RopeScaling:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    original = parameters.get("original_max_position_embeddings", config.get("max_position_embeddings", 2048))
    if kind in ("default", None):
        return NoScaling()
    if kind == "linear":
        return LinearScaling(factor=float(parameters["factor"]))
    if kind == "llama3":
        low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
        return Llama3Scaling(factor=float(parameters["factor"]), low=low, high=high, original=original)
    if kind == "yarn":
        fast, slow = float(parameters.get("beta_fast") or 32), float(parameters.get("beta_slow") or 1)
        length = float(parameters.get("attention_factor") or 0)
        ends: Literal["whole", "exact"] = "whole" if parameters.get("truncate", True) else "exact"
        turns = {"fast": fast, "slow": slow}
        return YarnScaling(factor=float(parameters["factor"]), original=original, **turns, length=length, ends=ends)
    raise config.refusal("rope_type", kind, ("default", "linear", "llama3", "yarn"))


def rope_values(rotary: Rotary) -> dict[str, Any]:
    """Return the `rope_parameters` of a rotary position."""
    parameters: dict[str, Any] = {
        "rope_theta": rotary.base,
        "rope_type": rotary.scaling.kind.replace("none", "default"),
    }
    if rotary.share != 1:
        parameters["partial_rotary_factor"] = rotary.share
    scaling = rotary.scaling
    if isinstance(scaling, LinearScaling):
        parameters["factor"] = scaling.factor
    elif isinstance(scaling, Llama3Scaling):
        parameters |= {"factor": scaling.factor, "low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        parameters["original_max_position_embeddings"] = scaling.original
    elif isinstance(scaling, YarnScaling):
        parameters |= {"factor": scaling.factor, "beta_fast": scaling.fast, "beta_slow": scaling.slow}
        parameters |= {"original_max_position_embeddings": scaling.original}
        parameters |= {"attention_factor": scaling.length} if scaling.length else {}
        parameters |= {"truncate": False} if scaling.ends == "exact" else {}
    elif not isinstance(scaling, NoScaling):
        raise Misfit(f"rotary scaling {scaling.kind!r} has no name there")
    return parameters


def causal_heads(name: str, *, bias: bool = False) -> tuple[Architecture, ...]:
    """Return the architectures of a decoder: next token, the body alone, classes from the last token."""

    def lm(config: Config) -> Head:
        tied = config.get("tie_word_embeddings", config.values.get("model_type", "").startswith("gemma"))
        return LMHead(weights="tied" if tied else "untied", bias=bias)

    head: Table = {"head.untied": "lm_head", "head.bias": "lm_head.bias"}
    return (
        Architecture(f"{name}ForCausalLM", LMHead, lm, lm_values, table=head),
        Architecture(f"{name}Model", LMHead, lambda config: LMHead()),
        by_last_token(name),
    )


def window_of(pattern: Pattern) -> int | None:
    """Return the size of a sliding window, the query's own position included; None where everything is seen."""
    if isinstance(pattern, Causal):
        return None
    if isinstance(pattern, Both) and isinstance(pattern.a, Causal) and isinstance(pattern.b, Window):
        return pattern.b.left + 1
    raise Misfit(f"pattern {pattern.kind!r} has no name there", 3)


class LlamaLike(Format):
    """What all of them share; the class variables and `attention` say how one differs."""

    prefix = "model."
    buffers = ("*rotary_emb.inv_freq",)
    # their defaults are ids of the published vocabularies
    unsaid: ClassVar[dict[str, Any]] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    norms: ClassVar[Table] = {"residuals.0.norm": "input_layernorm", "residuals.1.norm": "post_attention_layernorm"}
    qk_norm: ClassVar[bool] = False
    slides: ClassVar[bool] = False  # whether a configuration may say a sliding window
    attention_kind: ClassVar[type[Any]] = Attention
    mlp_kind: ClassVar[type[Any]] = Gated
    activation: ClassVar[str] = "hidden_act"
    eps: ClassVar[float] = 1e-6

    def norm(self, config: Config) -> RMSNorm:
        """Return the norm that all layers have."""
        return RMSNorm(eps=config.get("rms_norm_eps", self.eps))

    def residual(self, norm: Norm) -> Residual:
        """Return how parts join the stream."""
        return PreNorm(norm=norm)

    def attention(self, config: Config, layer: int) -> Attention:
        """Return the attention of a layer."""
        pattern = self.windowed(config, layer) if self.slides else Causal()
        return self.plain(config).replace(position=rotary_of(config), pattern=pattern)

    def plain(self, config: Config) -> Attention:
        """Return what the attention of all layers has in common."""
        width, n_heads = config.number("hidden_size"), config.number("num_attention_heads")
        d_head = config.get("head_dim", 0) or width // n_heads
        n_kv = config.get("num_key_value_heads", 0) or n_heads
        return Attention(
            n_heads=n_heads,
            n_kv_heads=0 if n_kv == n_heads else n_kv,
            d_head=0 if d_head * n_heads == width else d_head,
            pattern=Causal(),
            bias=config.get("attention_bias", False),
            dropout=config.get("attention_dropout", 0.0),
            qk_norm=self.norm(config) if self.qk_norm else NoNorm(),
        )

    def windowed(self, config: Config, layer: int) -> Pattern:
        """Return the pattern of a layer: a sliding window where `layer_types`, or without them the window, says so."""
        window, kinds = config.get("sliding_window", None), config.get("layer_types", None)
        sliding = kinds[layer] == SLIDING if kinds else config.get("use_sliding_window", window is not None)
        return Causal() & Window(left=window - 1) if sliding and window else Causal()

    def model(self, config: Config, head: Head) -> Model:
        config.get("tie_word_embeddings", False)
        config.only("pretraining_tp", 1)
        config.get("max_window_layers", 0)
        norm, n_layers = self.norm(config), config.number("num_hidden_layers")
        blocks = tuple(
            Block(parts=(self.attention(config, layer), self.mlp(config, layer)), residual=self.residual(norm))
            for layer in range(n_layers)
        )
        return self.assembled(
            config,
            max_len=config.number("max_position_embeddings", 2048),
            dropout=0.0,
            embedding=Tokens(),
            decoder=Stack(blocks=blocks, order=tuple(range(n_layers)), norm=norm),
            head=head,
        )

    def mlp(self, config: Config, layer: int) -> Part:
        """Return the feed-forward of a layer."""
        activation = config.choice(self.activation, ACTIVATIONS, "silu")
        return Gated(d_ff=config.number("intermediate_size"), activation=activation, bias=config.get("mlp_bias", False))

    def values(self, model: Model) -> dict[str, Any]:
        attention, mlp = self.attentions(model)[0], need(self.mlp_kind, model, "decoder.blocks[0].parts[1]")
        return self.sizes(model) | {
            "num_hidden_layers": need(Stack, model, "decoder").n_layers,
            "num_attention_heads": attention.n_heads,
            "num_key_value_heads": attention.n_kv_heads or attention.n_heads,
            "head_dim": attention.d_head or model.d_model // attention.n_heads,
            "intermediate_size": mlp.d_ff,
            self.activation: self.activated(mlp),
            "attention_dropout": attention.dropout,
            "max_position_embeddings": model.max_len,
            "rms_norm_eps": need(RMSNorm, model, "decoder.norm").eps,
            **self.own(model, attention, mlp),
        }

    def activated(self, mlp: Any) -> str:
        """Return the name of the activation of a feed-forward."""
        return their_activation(mlp.activation)

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        """Return what a configuration says besides, in the words of this kind."""
        return {"rope_parameters": rope_values(need(Rotary, model, "decoder.blocks[0].parts[0].position"))}

    def tied_to(self, model: Model) -> dict[str, str]:
        return tied_head(model)

    def attentions(self, model: Model) -> list[Attention]:
        """Return the attention of every layer."""
        return need_all(self.attention_kind, model, "decoder.blocks[*].parts[0]")

    def sliding(self, model: Model) -> dict[str, Any]:
        """Return what a configuration says of windows, by layer."""
        windows = [window_of(attention.pattern) for attention in self.attentions(model)]
        kinds = [SLIDING if window else FULL for window in windows]
        window = next((window for window in windows if window), None)
        return {"layer_types": kinds, "sliding_window": window, "use_sliding_window": window is not None}

    def body(self, model: Model) -> Table:
        attention = self.attentions(model)[0]
        d_head = attention.d_head or model.d_model // attention.n_heads
        heights = tuple(n * d_head for n in (attention.n_heads, *[attention.n_kv_heads or attention.n_heads] * 2))
        layer: Table = {
            "parts.0.qkv": PlacedRows.at("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", heights=heights),
            "parts.0.out": "self_attn.o_proj",
            **self.mlp_table(model),
            **({"parts.0.norms.q": "self_attn.q_norm", "parts.0.norms.k": "self_attn.k_norm"} if self.qk_norm else {}),
            **self.norms,
        }
        return {
            "embedding.table": "embed_tokens",
            "decoder.norm": "norm",
            **layers("decoder.blocks.*", "layers.*", layer),
        }

    def mlp_table(self, model: Model) -> Table:
        """Return where the feed-forward of a layer is."""
        return {"parts.1.widen": ("mlp.gate_proj", "mlp.up_proj"), "parts.1.narrow": "mlp.down_proj"}


class Llama(LlamaLike, model_type="llama"):
    """Touvron et al. 2023; Grattafiori et al. 2024."""

    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Llama")

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        return super().own(model, attention, mlp) | {"attention_bias": attention.bias, "mlp_bias": mlp.bias}


class Mistral(LlamaLike, model_type="mistral"):
    """Jiang et al. 2023."""

    slides = True
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Mistral")

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        return super().own(model, attention, mlp) | {"sliding_window": window_of(attention.pattern)}


class Qwen2(LlamaLike, model_type="qwen2"):
    """Yang et al. 2024."""

    slides = True
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Qwen2")

    def attention(self, config: Config, layer: int) -> Attention:
        return super().attention(config, layer).replace(bias=True, out_bias=False)

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        return super().own(model, attention, mlp) | self.sliding(model)


class Qwen3(LlamaLike, model_type="qwen3"):
    """Yang et al. 2025."""

    slides = True
    qk_norm = True
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Qwen3")

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        return super().own(model, attention, mlp) | self.sliding(model) | {"attention_bias": attention.bias}


class Olmo2(LlamaLike, model_type="olmo2"):
    """OLMo et al. 2024."""

    qk_norm = True
    eps = 1e-5
    norms: ClassVar[Table] = {
        "residuals.0.after": "post_attention_layernorm",
        "residuals.1.after": "post_feedforward_layernorm",
    }
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Olmo2")

    def residual(self, norm: Norm) -> Residual:
        return SandwichNorm(before=NoNorm(), after=norm)

    def attention(self, config: Config, layer: int) -> Attention:
        return super().attention(config, layer).replace(qk_norm_over="heads")

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        if attention.d_head:
            raise Misfit("heads are d_model / n_heads wide there", 3)
        return super().own(model, attention, mlp) | {"attention_bias": attention.bias}


class SmolLM3(LlamaLike, model_type="smollm3"):
    """Bakouch et al. 2025: layers without positions."""

    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("SmolLM3")

    def attention(self, config: Config, layer: int) -> Attention:
        every = config.get("no_rope_layer_interval", 4)
        turned = config.get("no_rope_layers", None)
        attention = self.plain(config).replace(pattern=self.windowed(config, layer))
        rotary = rotary_of(config, base=2e6)
        turns = bool(turned[layer]) if turned else bool((layer + 1) % every)
        return attention.replace(position=rotary if turns else NoPosition())

    def own(self, model: Model, attention: Attention, mlp: Gated) -> dict[str, Any]:
        positions = [one.position for one in self.attentions(model)]
        rotary = next((one for one in positions if isinstance(one, Rotary)), Rotary(base=2e6, layout="halves"))
        turned = [int(isinstance(one, Rotary)) for one in positions]
        values = {"rope_parameters": rope_values(rotary), "no_rope_layers": turned, "mlp_bias": mlp.bias}
        return values | {"attention_bias": attention.bias} | self.sliding(model)
