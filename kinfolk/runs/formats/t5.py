"""T5, in both releases: relative position buckets, no biases, and unscaled attention scores."""

from typing import Any, ClassVar

from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense, Gated
from kinfolk.layers.heads.head import Head, LMHead
from kinfolk.layers.init import FanIn
from kinfolk.layers.mixers.attention import Attention, CrossAttention
from kinfolk.layers.norms.norm import RMSNorm
from kinfolk.layers.part import FeedForward
from kinfolk.layers.positions.relative import T5Buckets
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import Causal
from kinfolk.runs.formats.bert import over_texts
from kinfolk.runs.formats.gpt import tied_head
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import (
    ACTIVATIONS,
    Architecture,
    Format,
    Misfit,
    layers,
    need,
    prefixed,
    their_activation,
)
from kinfolk.runs.huggingface.places import Table

LOOK: Table = {"qkv": ("SelfAttention.q", "SelfAttention.k", "SelfAttention.v"), "out": "SelfAttention.o"}
ACROSS: Table = {"q": "EncDecAttention.q", "kv": ("EncDecAttention.k", "EncDecAttention.v"), "out": "EncDecAttention.o"}

INSIDE = "transformer."
"""Before the names of a body under a head for classes."""


def in_place(ours: int, theirs: int, table: Table) -> Table:
    """Say a table for a part and the norm before it."""
    parts = {f"parts.{ours}.{name}": place for name, place in prefixed(table, f"layer.{theirs}.").items()}
    return {**parts, f"residuals.{ours}.norm": f"layer.{theirs}.layer_norm"}


def lm(config: Config) -> Head:
    """Return the head: states are divided where it is tied; newer files say so, older ones by their tie."""
    tied = config.get("tie_word_embeddings", True)
    scaled = config.get("scale_decoder_outputs", tied)
    if not scaled and config.has("lm_head.weight"):
        return LMHead(weights="untied")
    return LMHead(scale="rsqrt" if scaled else "none")


def lm_values(head: LMHead) -> dict[str, Any]:
    """Return what a configuration says of it."""
    if head.weights == "untied" and head.scale == "rsqrt":
        raise Misfit("head: states are divided only before a tied output layer")
    return {"tie_word_embeddings": head.scale == "rsqrt", "scale_decoder_outputs": head.scale == "rsqrt"}


class T5Format(Format):
    """What T5 shares with its children."""

    shared: ClassVar[Table] = {
        "embedding.table": "shared",
        "encoder.shared.0": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "decoder.shared.0": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "encoder.norm": "encoder.final_layer_norm",
        "decoder.norm": "decoder.final_layer_norm",
    }

    def model(self, config: Config, head: Head) -> Model:
        config.get("tie_word_embeddings", True)
        config.get("scale_decoder_outputs", True)
        config.fixed(is_encoder_decoder=True, is_decoder=False)
        width, n_heads, d_kv = config.number("d_model"), config.number("num_heads"), config.number("d_kv", 64)
        dropout = config.get("dropout_rate", 0.1)
        where = T5Buckets(
            n_buckets=config.number("relative_attention_num_buckets", 32),
            farthest=config.number("relative_attention_max_distance", 128),
        )
        d_head = 0 if n_heads * d_kv == width else d_kv
        attention = Attention(n_heads=n_heads, d_head=d_head, scale=1.0, bias=False, position=where, dropout=dropout)
        across = CrossAttention(n_heads=n_heads, d_head=d_head, scale=1.0, bias=False, dropout=dropout)
        norm = RMSNorm(eps=config.get("layer_norm_epsilon", 1e-6))
        n_encoder = config.number("num_layers")
        n_decoder = config.number("num_decoder_layers", n_encoder)
        return Model(
            d_model=width,
            vocab_size=config.number("vocab_size"),
            max_len=config.number("n_positions", 512),
            dropout=dropout,
            embedding=Tokens(),
            encoder=_stack((attention,), self.mlps(config, n_encoder, "encoder"), norm),
            decoder=_stack(
                (attention.replace(pattern=Causal()), across), self.mlps(config, n_decoder, "decoder"), norm
            ),
            head=head,
            init=FanIn(),
        )

    def mlps(self, config: Config, n_layers: int, side: str) -> list[FeedForward]:
        """Return the feed-forward of each layer."""
        raise NotImplementedError

    def values(self, model: Model) -> dict[str, Any]:
        encoder, decoder = need(Stack, model, "encoder"), need(Stack, model, "decoder")
        attention = need(Attention, model, "encoder.blocks[0].parts[0]")
        where = need(T5Buckets, model, "encoder.blocks[0].parts[0].position")
        return {
            "d_model": model.d_model,
            "d_kv": attention.d_head or model.d_model // attention.n_heads,
            "num_heads": attention.n_heads,
            "num_layers": encoder.n_layers,
            "num_decoder_layers": decoder.n_layers,
            "relative_attention_num_buckets": where.n_buckets,
            "relative_attention_max_distance": where.farthest,
            "dropout_rate": model.dropout,
            "layer_norm_epsilon": need(RMSNorm, model, "encoder.norm").eps,
            "vocab_size": model.vocab_size,
            "n_positions": model.max_len,
            "is_encoder_decoder": True,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
            "eos_token_id": 1,
        }

    def body(self, model: Model) -> Table:
        table: dict[str, Any] = dict(self.shared)
        for side in ("encoder", "decoder"):
            for i, block in enumerate(need(Stack, model, side).blocks):
                last = len(block.parts) - 1
                inside = {**in_place(0, 0, LOOK), **(in_place(1, 1, ACROSS) if last == 2 else {})}
                inside |= in_place(last, last, self.mlp_table(block.parts[last]))
                table |= layers(f"{side}.blocks.{i}", f"{side}.block.{i}", inside)
        return table

    def mlp_table(self, mlp: Any) -> Table:
        """Return where the weights of a feed-forward are."""
        widen = ("DenseReluDense.wi_0", "DenseReluDense.wi_1") if isinstance(mlp, Gated) else "DenseReluDense.wi"
        return {"widen": widen, "narrow": "DenseReluDense.wo"}

    def tied_to(self, model: Model) -> dict[str, str]:
        names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        return tied_head(model) | dict.fromkeys(names, "embedding.table.weight")


class T5(T5Format, model_type="t5"):
    """Raffel et al. 2020."""

    unused = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
    architectures = (
        Architecture("T5ForConditionalGeneration", LMHead, lm, lm_values, table={"head.untied": "lm_head"}),
        Architecture("T5Model", LMHead, lambda config: LMHead(scale="rsqrt")),
        Architecture("T5WithLMHeadModel", LMHead, lm, lm_values, table={"head.untied": "lm_head"}),
        over_texts(
            "T5",
            "classification_head.dense",
            "classification_head.out_proj",
            "lm_head.weight",
            inside=INSIDE,
            # of the last state of a decoder that reads the text once more, a place behind
            pool="last",
            activation="tanh",
        ),
    )

    def rename(self, name: str) -> str:
        return super().rename(name.removeprefix(INSIDE))

    def mlps(self, config: Config, n_layers: int, side: str) -> list[FeedForward]:
        name = config.get("feed_forward_proj", "relu")
        gate, _, activation = name.rpartition("-")
        # said again in newer files; of "gated-gelu" it is the approximation
        activation = {"gated-gelu": "gelu_new"}.get(name, activation)
        config.fixed(dense_act_fn=activation, is_gated_act=gate == "gated")
        if gate not in ("", "gated") or activation not in ACTIVATIONS:
            raise config.refusal("feed_forward_proj", name, ["relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"])
        d_ff, ours = config.number("d_ff"), ACTIVATIONS[activation]
        mlp: FeedForward = Gated(d_ff=d_ff, activation=ours) if gate else Dense(d_ff=d_ff, activation=ours, bias=False)
        return [mlp] * n_layers

    def values(self, model: Model) -> dict[str, Any]:
        mlp = need(Stack, model, "encoder").blocks[0].parts[-1]
        if not isinstance(mlp, Dense | Gated):
            raise Misfit(f"encoder.blocks[0].parts[-1] is {type(mlp).__name__}")
        name = their_activation(mlp.activation)
        if isinstance(mlp, Gated):
            name = "gated-gelu" if name == "gelu_new" else f"gated-{name}"
        return super().values(model) | {"feed_forward_proj": name, "d_ff": mlp.d_ff}


def _stack(attentions: tuple[Any, ...], mlps: list[FeedForward], norm: RMSNorm) -> Stack:
    blocks = tuple(Block(parts=(*attentions, mlp), residual=PreNorm(norm=norm)) for mlp in mlps)
    return Stack(blocks=blocks, order=tuple(range(len(blocks))), norm=norm)
