"""GPT-NeoX (with Pythia) and Phi: decoders with attention and feed-forward in parallel."""

from typing import Any, ClassVar

from kinfolk.family.assembly import stack
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.head import Head, LMHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.evolved import Branches
from kinfolk.layers.norms.norm import LayerNorm, NoNorm
from kinfolk.layers.norms.normed import Normed
from kinfolk.layers.positions.relative import Rotary
from kinfolk.layers.residuals.residual import PreNorm, Residual
from kinfolk.models.block import Block
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import Causal
from kinfolk.runs.formats.gpt import lm_values
from kinfolk.runs.formats.llama import causal_heads, rope_values, rotary_of
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, Format, Misfit, layers, need, their_activation
from kinfolk.runs.huggingface.places import InThrees, Table


class ParallelBlocks(Format):
    """What both share: how a configuration says the two branches; `block` joins them."""

    buffers = ("*rotary_emb.inv_freq", "*.attention.bias", "*.attention.masked_bias")
    dropout: ClassVar[str] = "hidden_dropout"
    share: ClassVar[float] = 1.0
    old_share: ClassVar[str] = "partial_rotary_factor"

    def block(self, attention: Attention, mlp: Dense, norm: LayerNorm) -> Block:
        """Return the block of two branches."""
        raise NotImplementedError

    def branches(self, block: Block) -> tuple[Attention, Dense]:
        """Return the attention and the feed-forward of a block."""
        return need(Attention, block, "parts[0].parts[0]"), need(Dense, block, "parts[0].parts[1]")

    def model(self, config: Config, head: Head) -> Model:
        config.get("tie_word_embeddings", False)
        norm = LayerNorm(eps=config.get("layer_norm_eps", 1e-5))
        rotary = rotary_of(config)
        if rotary.share == 1 and "rope_parameters" not in config.values:
            rotary = rotary.replace(
                share=config.get(self.old_share, self.share), base=config.get("rotary_emb_base", 1e4)
            )
        n_heads = config.number("num_attention_heads")
        n_kv = config.get("num_key_value_heads", 0) or n_heads
        if n_kv != n_heads:
            raise config.refusal("num_key_value_heads", n_kv, (n_heads,))
        attention = Attention(
            n_heads=n_heads,
            pattern=Causal(),
            position=rotary,
            bias=config.get("attention_bias", True),
            dropout=config.get("attention_dropout", 0.0),
        )
        activation = config.choice("hidden_act", ACTIVATIONS, "gelu")
        mlp = Dense(d_ff=config.number("intermediate_size", 4 * config.number("hidden_size")), activation=activation)
        depth = stack(self.block(attention, mlp, norm), config.number("num_hidden_layers"))
        return self.assembled(
            config,
            max_len=config.number("max_position_embeddings", 2048),
            dropout=config.get(self.dropout, 0.0),
            embedding=Tokens(),
            decoder=depth.replace(norm=norm),
            head=head,
        )

    def values(self, model: Model) -> dict[str, Any]:
        depth = need(Stack, model, "decoder")
        attention, mlp = self.branches(depth.blocks[0])
        return (
            self.sizes(model)
            | {
                "num_hidden_layers": depth.n_layers,
                "num_attention_heads": attention.n_heads,
                "intermediate_size": mlp.d_ff,
                "hidden_act": their_activation(mlp.activation),
                "attention_dropout": attention.dropout,
                self.dropout: model.dropout,
                "max_position_embeddings": model.max_len,
                "layer_norm_eps": need(LayerNorm, model, "decoder.norm").eps,
                "rope_parameters": rope_values(need(Rotary, attention, "position")),
                **self.own(attention),
            }
            | ({"embd_pdrop": model.dropout} if self.dropout == "resid_pdrop" else {})
        )

    def own(self, attention: Attention) -> dict[str, Any]:
        """Return what a configuration says besides."""
        return {}


class GptNeoX(ParallelBlocks, model_type="gpt_neox"):
    """Black et al. 2022: a norm for each branch; queries, keys and values of a head stored together."""

    prefix = "gpt_neox."
    share = 0.25
    old_share = "rotary_pct"
    architectures: ClassVar[tuple[Architecture, ...]] = (
        Architecture(
            "GPTNeoXForCausalLM",
            LMHead,
            lambda config: LMHead(weights="tied" if config.get("tie_word_embeddings", False) else "untied"),
            lm_values,
            table={"head.untied": "embed_out"},
        ),
        Architecture("GPTNeoXModel", LMHead, lambda config: LMHead()),
    )

    def model(self, config: Config, head: Head) -> Model:
        config.only("use_parallel_residual", True)
        config.get("is_decoder", False)
        return super().model(config, head)

    def block(self, attention: Attention, mlp: Dense, norm: LayerNorm) -> Block:
        branches = tuple(Normed(norm=norm, part=part) for part in (attention, mlp))
        return Block(parts=(Branches(parts=branches),), residual=PreNorm(norm=NoNorm()))

    def branches(self, block: Block) -> tuple[Attention, Dense]:
        return need(Attention, block, "parts[0].parts[0].part"), need(Dense, block, "parts[0].parts[1].part")

    def own(self, attention: Attention) -> dict[str, Any]:
        return {"use_parallel_residual": True, "attention_bias": attention.bias}

    def body(self, model: Model) -> Table:
        n_heads = self.branches(need(Stack, model, "decoder").blocks[0])[0].n_heads
        branch = "parts.0.parts"
        layer: Table = {
            f"{branch}.0.norm": "input_layernorm",
            f"{branch}.0.part.qkv": InThrees.at("attention.query_key_value", n_heads=n_heads),
            f"{branch}.0.part.out": "attention.dense",
            f"{branch}.1.norm": "post_attention_layernorm",
            f"{branch}.1.part.widen": "mlp.dense_h_to_4h",
            f"{branch}.1.part.narrow": "mlp.dense_4h_to_h",
        }
        return {
            "embedding.table": "embed_in",
            "decoder.norm": "final_layer_norm",
            **layers("decoder.blocks.*", "layers.*", layer),
        }


class Phi(ParallelBlocks, model_type="phi"):
    """Li et al. 2023: one norm, a bias on the output layer."""

    prefix = "model."
    dropout = "resid_pdrop"
    share = 0.5
    architectures: ClassVar[tuple[Architecture, ...]] = causal_heads("Phi", bias=True)
    table: ClassVar[Table] = {
        "embedding.table": "embed_tokens",
        "decoder.norm": "final_layernorm",
        **layers(
            "decoder.blocks.*",
            "layers.*",
            {
                "residuals.0.norm": "input_layernorm",
                "parts.0.parts.0.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                "parts.0.parts.0.out": "self_attn.dense",
                "parts.0.parts.1.widen": "mlp.fc1",
                "parts.0.parts.1.narrow": "mlp.fc2",
            },
        ),
    }

    def model(self, config: Config, head: Head) -> Model:
        config.only("qk_layernorm", False)
        config.only("embd_pdrop", config.get("resid_pdrop", 0.0))
        return super().model(config, head)

    def block(self, attention: Attention, mlp: Dense, norm: LayerNorm) -> Block:
        residual: Residual = PreNorm(norm=norm)
        return Block(parts=(Branches(parts=(attention, mlp)),), residual=residual)

    def own(self, attention: Attention) -> dict[str, Any]:
        if not attention.bias:
            raise Misfit("attention has biases there", 3)
        return {}
