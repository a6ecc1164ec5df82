"""GPT and GPT-2: decoders whose linear maps are stored transposed (Conv1D)."""

from typing import Any, ClassVar

from kinfolk.family.assembly import self_block, stack
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import Head, LMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.position import Learned
from kinfolk.layers.residuals.residual import PostNorm, PreNorm
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.activated_linear import Activation
from kinfolk.ops.patterns.leaves import Causal
from kinfolk.runs.formats.bert import by_last_token
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, Format, Misfit, layers, need
from kinfolk.runs.huggingface.places import Table, Turned

LAYER: Table = {
    "parts.0.qkv": Turned.at("attn.c_attn"),
    "parts.0.out": Turned.at("attn.c_proj"),
    "residuals.0.norm": "ln_1",
    "parts.1.widen": Turned.at("mlp.c_fc"),
    "parts.1.narrow": Turned.at("mlp.c_proj"),
    "residuals.1.norm": "ln_2",
}


def lm(config: Config) -> Head:
    """Return the head over the vocabulary."""
    return LMHead(weights="tied" if config.get("tie_word_embeddings", True) else "untied")


def lm_values(head: LMHead) -> dict[str, Any]:
    """Return what a configuration says of it."""
    return {"tie_word_embeddings": head.weights == "tied"}


def tied_head(model: Model) -> dict[str, str]:
    """Return the tensor of an output layer that is tied to the table of tokens, which some files repeat."""
    tied = isinstance(model.head, LMHead) and model.head.weights == "tied"
    return {"lm_head.weight": "embedding.table.weight"} if tied else {}


def heads(name: str, suffix: str = "LMHeadModel") -> tuple[Architecture, ...]:
    """Return the architectures of a decoder; its body alone is opened with the tied head that it always has."""
    head: Table = {"head.untied": "lm_head"}
    return (
        Architecture(f"{name}{suffix}", LMHead, lm, lm_values, table=head),
        Architecture(f"{name}Model", LMHead, lambda config: LMHead()),
        by_last_token(name),
    )


class Decoder(Format):
    """What the two share."""

    prefix = "transformer."
    width = "n_embd"
    buffers = ("*.attn.bias", "*.attn.masked_bias", "*position_ids")
    activation: ClassVar[str] = "activation_function"
    default: ClassVar[str] = "gelu_new"
    pre_norm: ClassVar[bool] = True
    names: ClassVar[dict[str, Activation]] = ACTIVATIONS

    def model(self, config: Config, head: Head) -> Model:
        config.get("tie_word_embeddings", True)
        width, dropout = config.number("n_embd"), config.get("resid_pdrop", 0.1)
        config.only("embd_pdrop", dropout)
        norm = LayerNorm(eps=config.get("layer_norm_epsilon", 1e-5))
        attention = Attention(n_heads=config.number("n_head"), pattern=Causal(), dropout=config.get("attn_pdrop", 0.1))
        activation = config.choice(self.activation, self.names, self.default)
        mlp = Dense(d_ff=config.get("n_inner", 0) or 4 * width, activation=activation)
        block = self_block(attention, mlp, PreNorm(norm=norm) if self.pre_norm else PostNorm(norm=norm))
        depth = stack(block, config.number("n_layer"))
        model = self.assembled(
            config,
            max_len=config.number("n_positions", config.get("n_ctx", 0) or 1024),
            dropout=dropout,
            embedding=Tokens(position=Learned()),
            decoder=depth.replace(norm=norm) if self.pre_norm else depth,
            head=head,
        )
        return model.replace(init=model.init.replace(branches="scaled")) if self.pre_norm else model

    def values(self, model: Model) -> dict[str, Any]:
        need(PreNorm if self.pre_norm else PostNorm, model, "decoder.blocks[0].residual")
        attention = need(Attention, model, "decoder.blocks[0].parts[0]")
        mlp = need(Dense, model, "decoder.blocks[0].parts[1]")
        ours = {ours: theirs for theirs, ours in reversed(self.names.items())}
        if mlp.activation not in ours:
            raise Misfit(f"activation {mlp.activation!r} has no name there")
        return self.sizes(model) | {
            "n_layer": need(Stack, model, "decoder").n_layers,
            "n_head": attention.n_heads,
            "n_inner": mlp.d_ff,
            self.activation: ours[mlp.activation],
            "resid_pdrop": model.dropout,
            "embd_pdrop": model.dropout,
            "attn_pdrop": attention.dropout,
            "n_positions": model.max_len,
            "layer_norm_epsilon": need(LayerNorm, model, "decoder.blocks[0].residual.norm").eps,
        }


class Gpt2(Decoder, model_type="gpt2"):
    """Radford et al. 2019."""

    table: ClassVar[Table] = {
        "embedding.table": "wte",
        "embedding.position.table": "wpe",
        "decoder.norm": "ln_f",
        **layers("decoder.blocks.*", "h.*", LAYER),
    }
    architectures: ClassVar[tuple[Architecture, ...]] = heads("GPT2")

    def model(self, config: Config, head: Head) -> Model:
        config.fixed(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
        # a way of computing the same
        config.get("reorder_and_upcast_attn", False)
        config.only("add_cross_attention", False)
        return super().model(config, head)


class Gpt(Decoder, model_type="openai-gpt"):
    """Radford et al. 2018. Their "gelu" is the approximation by a hyperbolic tangent."""

    activation = "afn"
    default = "gelu"
    pre_norm = False
    names: ClassVar[dict[str, Activation]] = {"gelu": "gelu-tanh", "relu": "relu", "silu": "swish", "swish": "swish"}
    table: ClassVar[Table] = {
        "embedding.table": "tokens_embed",
        "embedding.position.table": "positions_embed",
        **layers("decoder.blocks.*", "h.*", LAYER),
    }
    architectures: ClassVar[tuple[Architecture, ...]] = heads("OpenAIGPT")

    def values(self, model: Model) -> dict[str, Any]:
        values = super().values(model)
        if values.pop("n_inner") != 4 * model.d_model:
            raise Misfit("d_ff is not four times d_model, as it always is there")
        return values
