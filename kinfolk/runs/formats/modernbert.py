"""ModernBERT: a masked language model, or the body alone."""

from typing import Any, ClassVar

from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Gated
from kinfolk.layers.heads.head import Head, MaskedLMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.norms.norm import LayerNorm, NoNorm
from kinfolk.layers.norms.normed import Normed
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import Full, Window
from kinfolk.runs.formats.bert import alone
from kinfolk.runs.formats.llama import FULL, SLIDING, rope_values, rotary_of
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
from kinfolk.runs.huggingface.places import Table

BASES = {FULL: 160000.0, SLIDING: 10000.0}
IDLE = (
    "tie_word_embeddings",
    "decoder_bias",
    "classifier_activation",
    "classifier_bias",
    "classifier_dropout",
    "classifier_pooling",
    "cls_token_id",
    "sep_token_id",
    "deterministic_flash_attn",
    "initializer_cutoff_factor",
    "layer_norm_eps",
    "position_embedding_type",
    "sparse_prediction",
    "sparse_pred_ignore_index",
)
"""Keys of published files that change nothing in a body: of heads, of kernels, and of other libraries."""
OLD = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}


def _norm(config: Config) -> LayerNorm:
    return LayerNorm(eps=config.get("norm_eps", 1e-5), bias=config.get("norm_bias", False))


def _masked(config: Config) -> Head:
    config.only("tie_word_embeddings", True)
    activation = config.choice("classifier_activation", ACTIVATIONS, "gelu")
    config.get("decoder_bias", True)
    return MaskedLMHead(activation=activation, norm=_norm(config), bias=config.get("classifier_bias", False))


def _head_values(head: MaskedLMHead) -> dict[str, Any]:
    return {
        "classifier_activation": their_activation(head.activation),
        "classifier_bias": head.bias,
        "decoder_bias": True,
        "tie_word_embeddings": True,
    }


class ModernBert(Format, model_type="modernbert"):
    """Warner et al. 2024."""

    prefix = "model."
    # their defaults are ids of the published vocabulary
    unsaid: ClassVar[dict[str, Any]] = dict.fromkeys(
        ("bos_token_id", "eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id")
    )
    refuses = "heads that classify: theirs have a norm between their two maps"
    table: ClassVar[Table] = {
        "embedding.table": "embeddings.tok_embeddings",
        "embedding.norm": "embeddings.norm",
        "encoder.norm": "final_norm",
        **layers(
            "encoder.blocks.*",
            "layers.*",
            {
                "residuals.0.norm": "attn_norm",
                "parts.0.qkv": "attn.Wqkv",
                "parts.0.out": "attn.Wo",
                "residuals.1.norm": "mlp_norm",
                "parts.1.widen": "mlp.Wi",
                "parts.1.narrow": "mlp.Wo",
                # of the first layer, whose attention has no norm
                "parts.1.norm": "mlp_norm",
                "parts.1.part.widen": "mlp.Wi",
                "parts.1.part.narrow": "mlp.Wo",
            },
        ),
    }
    architectures: ClassVar[tuple[Architecture, ...]] = (
        alone("ModernBert", "head.*", "decoder.*"),
        Architecture(
            "ModernBertForMaskedLM",
            MaskedLMHead,
            _masked,
            _head_values,
            table={"head.transform": "head.dense", "head.norm": "head.norm", "head.bias": "decoder.bias"},
            ties={"decoder.weight": "embedding.table.weight"},
        ),
    )

    def model(self, config: Config, head: Head) -> Model:
        for rate in ("embedding_dropout", "mlp_dropout"):
            config.only(rate, 0.0)
        config.idle(*IDLE)
        n_layers, norm = config.number("num_hidden_layers"), _norm(config)
        kinds = config.get("layer_types", None)
        every = config.get("global_attn_every_n_layers", 3)
        activation = config.choice("hidden_activation", ACTIVATIONS, "gelu")
        width = config.number("intermediate_size")
        mlp = Gated(d_ff=width, activation=activation, bias=config.get("mlp_bias", False))
        blocks = []
        for layer in range(n_layers):
            kind = kinds[layer] if kinds else SLIDING if layer % every else FULL
            parts = self.attention(config, kind), mlp
            blocks.append(Block(parts=parts, residual=PreNorm(norm=norm)))
        first = Block(parts=(blocks[0].parts[0], Normed(part=mlp, norm=norm)), residual=PreNorm(norm=NoNorm()))
        return self.assembled(
            config,
            max_len=config.number("max_position_embeddings", 8192),
            dropout=0.0,
            embedding=Tokens(norm=norm),
            encoder=Stack(blocks=(first, *blocks[1:]), order=tuple(range(n_layers)), norm=norm),
            head=head,
        )

    def attention(self, config: Config, kind: str) -> Attention:
        """Return the attention of a type of layer."""
        side = config.number("local_attention", 128) // 2
        return Attention(
            n_heads=config.number("num_attention_heads"),
            bias=config.get("attention_bias", False),
            dropout=config.get("attention_dropout", 0.0),
            pattern=Window(left=side, right=side) if kind == SLIDING else Full(),
            position=rotary_of(config, kind, config.get(OLD[kind], BASES[kind])),
        )

    def values(self, model: Model) -> dict[str, Any]:
        depth = need(Stack, model, "encoder")
        attentions = need_all(Attention, model, "encoder.blocks[*].parts[0]")
        first = need(Normed, model, "encoder.blocks[0].parts[1]")
        mlp, norm = need(Gated, first, "part"), need(LayerNorm, first, "norm")
        windows = [attention.pattern.left if isinstance(attention.pattern, Window) else 0 for attention in attentions]
        kinds = [SLIDING if window else FULL for window in windows]
        rope = {
            kind: rope_values(need(Rotary, attention, "position"))
            for kind, attention in zip(reversed(kinds), reversed(attentions), strict=True)
        }
        usual = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in BASES.items()}
        if model.dropout:
            raise Misfit("dropout of residual branches has no name there")
        return self.sizes(model) | {
            "num_hidden_layers": depth.n_layers,
            "num_attention_heads": attentions[0].n_heads,
            "intermediate_size": mlp.d_ff,
            "hidden_activation": their_activation(mlp.activation),
            "max_position_embeddings": model.max_len,
            "norm_eps": norm.eps,
            "norm_bias": norm.bias,
            "attention_bias": attentions[0].bias,
            "attention_dropout": attentions[0].dropout,
            "mlp_bias": mlp.bias,
            "layer_types": kinds,
            "local_attention": 2 * next((window for window in windows if window), 64),
            "rope_parameters": usual | rope,
        }
