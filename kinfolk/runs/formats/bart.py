"""BART and Marian: encoder-decoders after Vaswani et al., with norms behind each part."""

from typing import Any, ClassVar, Literal

from kinfolk.family.assembly import cross_block, self_block, stack
from kinfolk.layers.embeddings.embedding import Embedding, Tokens
from kinfolk.layers.embeddings.two_sided import TwoSided
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import Head, LMHead
from kinfolk.layers.init import Normal
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.position import Learned, Sinusoid
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import Causal
from kinfolk.runs.formats.bert import over_texts
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, Format, Misfit, layers, need, their_activation
from kinfolk.runs.huggingface.places import Below, Spread, Table

LOOK: Table = {
    "parts.0.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "parts.0.out": "self_attn.out_proj",
    "residuals.0.norm": "self_attn_layer_norm",
}
ENCODER: Table = {
    **LOOK,
    "parts.1.widen": "fc1",
    "parts.1.narrow": "fc2",
    "residuals.1.norm": "final_layer_norm",
}
DECODER: Table = {
    **LOOK,
    "parts.1.q": "encoder_attn.q_proj",
    "parts.1.kv": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "parts.1.out": "encoder_attn.out_proj",
    "residuals.1.norm": "encoder_attn_layer_norm",
    "parts.2.widen": "fc1",
    "parts.2.narrow": "fc2",
    "residuals.2.norm": "final_layer_norm",
}
STACKS: Table = {
    **layers("encoder.blocks.*", "encoder.layers.*", ENCODER),
    **layers("decoder.blocks.*", "decoder.layers.*", DECODER),
}
TIED = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")


def lm(config: Config) -> Head:
    """Return the tied head, with the bias that most files have, be it of zeros."""
    return LMHead(bias=config.has("final_logits_bias"))


class Pairs(Format):
    """What the two share."""

    prefix = "model."
    table: ClassVar[Table] = STACKS
    old: ClassVar[dict[str, Any]] = {}  # keys of older files, which must say what the class does

    def model(self, config: Config, head: Head) -> Model:
        config.fixed(tie_word_embeddings=True, is_encoder_decoder=True, **self.old)
        width, block = config.number("d_model"), PostNorm(norm=LayerNorm())
        # said again of the encoder
        config.get("num_hidden_layers", 0)
        encoder, decoder = (self._layer(config, side) for side in ("encoder", "decoder"))
        back = encoder[0].replace(n_heads=decoder[0].n_heads, pattern=Causal())
        return Model(
            d_model=width,
            vocab_size=config.number("vocab_size"),
            max_len=config.number("max_position_embeddings", 1024),
            dropout=config.get("dropout", 0.1),
            embedding=self.embedding(config, "sqrt" if config.get("scale_embedding", False) else "none"),
            encoder=stack(self_block(*encoder, block), config.number("encoder_layers")),
            decoder=stack(cross_block(back, decoder[1], block), config.number("decoder_layers")),
            head=head,
            init=Normal(std=config.get("init_std", 0.02)),
        )

    def _layer(self, config: Config, side: str) -> tuple[Attention, Dense]:
        heads, dropout = config.number(f"{side}_attention_heads"), config.get("attention_dropout", 0.0)
        activation = config.choice("activation_function", ACTIVATIONS, "gelu")
        return Attention(n_heads=heads, dropout=dropout), Dense(
            d_ff=config.number(f"{side}_ffn_dim"), activation=activation
        )

    def embedding(self, config: Config, scale: Literal["none", "sqrt"]) -> Embedding:
        """Return the embedding of both sides."""
        raise NotImplementedError

    def tokens(self, model: Model) -> Tokens:
        """Return the table and what is around it, or raise `Misfit`."""
        raise NotImplementedError

    def values(self, model: Model) -> dict[str, Any]:
        values: dict[str, Any] = {
            "d_model": model.d_model,
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_len,
            "dropout": model.dropout,
            "scale_embedding": self.tokens(model).scale == "sqrt",
            "init_std": model.init.std if isinstance(model.init, Normal) else 0.02,
            "is_encoder_decoder": True,
            "tie_word_embeddings": True,
        }
        for side in ("encoder", "decoder"):
            attention = need(Attention, model, f"{side}.blocks[0].parts[0]")
            mlp = need(Dense, model, f"{side}.blocks[0].parts[-1]")
            values |= {
                f"{side}_layers": need(Stack, model, side).n_layers,
                f"{side}_attention_heads": attention.n_heads,
                f"{side}_ffn_dim": mlp.d_ff,
                "attention_dropout": attention.dropout,
                "activation_function": their_activation(mlp.activation),
            }
        return values


def heads(whole: str, bare: str, table: str) -> tuple[Architecture, ...]:
    """Return the architectures; a body alone is opened with the tied head that everybody gives it."""
    rows: Table = {"head.bias": Spread.at("final_logits_bias")}
    ties = dict.fromkeys(TIED, table)
    return (
        Architecture(whole, LMHead, lm, table=rows, ties=ties),
        Architecture(bare, LMHead, lambda config: LMHead(), ties=ties),
    )


class Bart(Pairs, model_type="bart"):
    """Lewis et al. 2020: learned positions, whose first two rows are not used, and a norm behind each embedding."""

    old: ClassVar[dict[str, Any]] = {
        "normalize_before": False,
        "normalize_embedding": True,
        "add_final_layer_norm": False,
        "add_bias_logits": False,
        "static_position_embeddings": False,
        "extra_pos_embeddings": 2,
    }
    table: ClassVar[Table] = {
        **STACKS,
        "embedding.source.table": "shared",
        "embedding.source.position.table": Below.at("encoder.embed_positions", skip=2),
        "embedding.target.position.table": Below.at("decoder.embed_positions", skip=2),
        "embedding.source.norm": "encoder.layernorm_embedding",
        "embedding.target.norm": "decoder.layernorm_embedding",
    }
    architectures = (
        *heads("BartForConditionalGeneration", "BartModel", "embedding.source.table.weight"),
        over_texts(
            "Bart",
            "classification_head.dense",
            "classification_head.out_proj",
            "lm_head.weight",
            "final_logits_bias",
            ties=dict.fromkeys(TIED[:2], "embedding.source.table.weight"),
            # of the last state of a decoder that reads the text once more, a place behind
            pool="last",
            activation="tanh",
        ),
    )

    def embedding(self, config: Config, scale: Literal["none", "sqrt"]) -> Embedding:
        return TwoSided(tokens=Tokens(position=Learned(), norm=LayerNorm(), scale=scale))

    def tokens(self, model: Model) -> Tokens:
        return need(TwoSided, model, "embedding").tokens


class Marian(Pairs, model_type="marian"):
    """Junczys-Dowmunt et al. 2018: sinusoids, all sines first."""

    old: ClassVar[dict[str, Any]] = {
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "add_bias_logits": False,
        "static_position_embeddings": True,
        "extra_pos_embeddings": 0,
        "share_encoder_decoder_embeddings": True,
    }
    buffers = ("*embed_positions.weight",)
    table: ClassVar[Table] = {**STACKS, "embedding.table": "shared"}
    architectures = heads("MarianMTModel", "MarianModel", "embedding.table.weight")

    def model(self, config: Config, head: Head) -> Model:
        config.only("decoder_vocab_size", config.get("vocab_size"))
        return super().model(config, head)

    def embedding(self, config: Config, scale: Literal["none", "sqrt"]) -> Embedding:
        return Tokens(position=Sinusoid(layout="halves"), scale=scale)

    def tokens(self, model: Model) -> Tokens:
        tokens = need(Tokens, model, "embedding")
        if not isinstance(tokens.position, Sinusoid):
            raise Misfit(f"embedding.position is {type(tokens.position).__name__}")
        return tokens

    def values(self, model: Model) -> dict[str, Any]:
        specials = {"pad_token_id": model.vocab_size - 1, "eos_token_id": 0}
        return specials | {"decoder_start_token_id": model.vocab_size - 1} | super().values(model)
