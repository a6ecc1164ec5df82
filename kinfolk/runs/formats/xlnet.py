"""XLNet and the Funnel-Transformer: distances of Transformer-XL, maps stored by head."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.family.assembly import self_block, stack
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.heads.head import Head
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.two_stream import TwoStreamAttention, XLSegments
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.relative import XL
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.depth.funnel import Funnel
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.runs.formats.bert import alone, class_values, n_classes, over_tokens, tied_lm
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, Format, Misfit, layers, need, their_activation
from kinfolk.runs.huggingface.places import BelowNothing, ByHead, HeadRows, Stacked, Table


def _summary(config: Config) -> Head:
    """Return the head over the last token, through a layer; theirs takes the last place, padding or not."""
    config.fixed(summary_type="last", summary_use_proj=True, summary_activation="tanh")
    return ClassHead(n_classes=n_classes(config), pool="last", activation="tanh")


class XLNet(Format, model_type="xlnet"):
    """Yang et al. 2019, both directions. What asks about hidden tokens is a token here, so `mask_emb` is left out."""

    prefix = "transformer."
    width = "d_model"
    refuses = "attn_type uni, clamp_len, same_length"
    free = ("max_len",)
    unused = ("transformer.mask_emb",)
    architectures = (
        alone("XLNet", "lm_loss.*", pool="last"),
        tied_lm("XLNetLMHeadModel", "lm_loss"),
        Architecture(
            "XLNetForSequenceClassification",
            ClassHead,
            _summary,
            class_values,
            table={"head.hidden": "sequence_summary.summary", "head.output": "logits_proj"},
            unused=("lm_loss.*",),
        ),
        *over_tokens("XLNet", "lm_loss.*", answering="QuestionAnsweringSimple"),
    )

    def model(self, config: Config, head: Head) -> Model:
        config.fixed(attn_type="bi", clamp_len=-1, same_length=False, bi_data=False)
        config.fixed(untie_r=True, tie_word_embeddings=True)
        # how memory is handed on, and of heads that are not here
        config.idle("use_mems_eval", "use_mems_train", "reuse_len", "start_n_top", "end_n_top", "summary_activation")
        width, n_heads = config.number("d_model"), config.number("n_head")
        config.only("d_head", width // n_heads)
        dropout, norm = config.get("dropout", 0.1), LayerNorm(eps=config.get("layer_norm_eps", 1e-12))
        attention = TwoStreamAttention(
            n_heads=n_heads,
            position=XLSegments(biases="per-layer"),
            bias=False,
            dropout=dropout,
            memory=config.get("mem_len", 0),
        )
        activation = config.choice("ff_activation", ACTIVATIONS, "gelu")
        mlp = Dense(d_ff=config.number("d_inner"), activation=activation)
        depth = stack(self_block(attention, mlp, PostNorm(norm=norm)), config.number("n_layer"))
        return self.assembled(config, max_len=512, dropout=dropout, embedding=Tokens(), encoder=depth, head=head)

    def values(self, model: Model) -> dict[str, Any]:
        attention = need(TwoStreamAttention, model, "encoder.blocks[0].parts[0]")
        mlp = need(Dense, model, "encoder.blocks[0].parts[1]")
        return self.sizes(model) | {
            "n_layer": need(Stack, model, "encoder").n_layers,
            "n_head": attention.n_heads,
            "d_head": model.d_model // attention.n_heads,
            "d_inner": mlp.d_ff,
            "ff_activation": their_activation(mlp.activation),
            "dropout": model.dropout,
            "layer_norm_eps": need(LayerNorm, model, "encoder.blocks[0].residual.norm").eps,
            "mem_len": attention.memory or None,
        }

    def body(self, model: Model) -> Table:
        n = need(TwoStreamAttention, model, "encoder.blocks[0].parts[0]").n_heads
        layer: Table = {
            "parts.0.qkv.weight": ByHead.at("rel_attn.q", "rel_attn.k", "rel_attn.v", n_heads=n),
            "parts.0.out.weight": HeadRows.at("rel_attn.o", n_heads=n),
            "parts.0.position.distance.weight": ByHead.at("rel_attn.r", n_heads=n),
            "parts.0.position.biases.weight": HeadRows.at("rel_attn.r_w_bias", "rel_attn.r_r_bias", n_heads=n),
            "parts.0.position.segments.weight": HeadRows.at("rel_attn.r_s_bias", "rel_attn.seg_embed", n_heads=n),
            "residuals.0.norm": "rel_attn.layer_norm",
            "parts.1.widen": "ff.layer_1",
            "parts.1.narrow": "ff.layer_2",
            "residuals.1.norm": "ff.layer_norm",
        }
        return {"embedding.table": "word_embedding", **layers("encoder.blocks.*", "layer.*", layer)}


class FunnelTransformer(Format, model_type="funnel"):
    """Dai et al. 2020. Which of two segments a pair is of has no part in its scores here, so that term must be zero."""

    prefix = "funnel."
    width = "d_model"
    std = 0.1
    refuses = "truncate_seq, pooling other than the mean, block_repeats, segment terms that are not zero"
    free = ("max_len",)
    zeros: ClassVar[tuple[str, ...]] = ("*attention.seg_embed", "*attention.r_s_bias")
    architectures = (
        alone("Funnel", "lm_head.*"),
        tied_lm("FunnelForMaskedLM", "lm_head"),
    )

    def model(self, config: Config, head: Head) -> Model:
        config.fixed(truncate_seq=False, pooling_type="mean", separate_cls=True)
        config.fixed(pool_q_only=True, tie_word_embeddings=True)
        config.only("attention_type", "relative_shift", "factorized")
        config.idle("initializer_std")
        sizes = config.get("block_sizes", [4, 4, 4])
        config.only("block_repeats", [1] * len(sizes))
        width, n_heads = config.number("d_model"), config.number("n_head")
        d_head = config.number("d_head", 64)
        norm = LayerNorm(eps=config.get("layer_norm_eps", 1e-9))
        attention = Attention(
            n_heads=n_heads,
            d_head=0 if d_head * n_heads == width else d_head,
            position=XL(biases="per-layer", apart=1),
            dropout=config.get("attention_dropout", 0.1),
        )
        mlp = Dense(d_ff=config.number("d_inner"), activation=config.choice("hidden_act", ACTIVATIONS, "gelu_new"))
        block = self_block(attention, mlp, PostNorm(norm=norm))
        levels = tuple(stack(block, size) for size in sizes)
        return self.assembled(
            config,
            max_len=512,
            dropout=config.get("hidden_dropout", 0.1),
            embedding=Tokens(norm=norm),
            encoder=Funnel(levels=levels, top=stack(block, config.number("num_decoder_layers", 2))),
            head=head,
        )

    def values(self, model: Model) -> dict[str, Any]:
        depth = need(Funnel, model, "encoder")
        attention = need(Attention, model, "encoder.levels[0].blocks[0].parts[0]")
        mlp = need(Dense, model, "encoder.levels[0].blocks[0].parts[1]")
        if depth.top is None:
            raise Misfit("encoder.top is missing")
        return self.sizes(model) | {
            "n_head": attention.n_heads,
            "d_head": attention.d_head or model.d_model // attention.n_heads,
            "d_inner": mlp.d_ff,
            "hidden_act": their_activation(mlp.activation),
            "block_sizes": [level.n_layers for level in depth.levels],
            "num_decoder_layers": depth.top.n_layers,
            "hidden_dropout": model.dropout,
            "attention_dropout": attention.dropout,
            "layer_norm_eps": need(LayerNorm, model, "embedding.norm").eps,
            "truncate_seq": False,
        }

    def body(self, model: Model) -> Table:
        n = need(Attention, model, "encoder.levels[0].blocks[0].parts[0]").n_heads
        names = tuple(f"attention.{part}_head" for part in "qkv")
        layer: Table = {
            "parts.0.qkv.weight": Stacked(tuple(f"{name}.weight" for name in names)),
            "parts.0.qkv.bias": BelowNothing(tuple(f"{name}.bias" for name in names[1:])),
            "parts.0.out": "attention.post_proj",
            "parts.0.position.distance.weight": ByHead.at("attention.r_kernel", n_heads=n),
            "parts.0.position.biases.weight": HeadRows.at("attention.r_w_bias", "attention.r_r_bias", n_heads=n),
            "residuals.0.norm": "attention.layer_norm",
            "parts.1.widen": "ffn.linear_1",
            "parts.1.narrow": "ffn.linear_2",
            "residuals.1.norm": "ffn.layer_norm",
        }
        return {
            "embedding.table": "embeddings.word_embeddings",
            "embedding.norm": "embeddings.layer_norm",
            **layers("encoder.levels.*.blocks.*", "encoder.blocks.*.*", layer),
            **layers("encoder.top.blocks.*", "decoder.layers.*", layer),
        }

    def always(self, model: Model, written: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors = {}
        for name, x in written.items():
            if name.endswith("attention.r_w_bias"):
                layer = name.removesuffix("r_w_bias")
                tensors[f"{layer}r_s_bias"] = torch.zeros_like(x)
                tensors[f"{layer}seg_embed"] = x.new_zeros(2, *x.shape)
        return tensors
