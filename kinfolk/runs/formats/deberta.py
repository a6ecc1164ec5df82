"""DeBERTa and its second release, which the third shares: disentangled attention over content and distance."""

from typing import Any, ClassVar

from kinfolk.family.assembly import self_block, stack
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.heads.head import Head, MaskedLMHead
from kinfolk.layers.mixers.disentangled import TERMS, Disentangled, DisentangledAttention
from kinfolk.layers.norms.norm import LayerNorm, NoNorm
from kinfolk.layers.positions.position import Learned, NoPosition
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.model import Model
from kinfolk.runs.formats.bert import (
    EMBEDDING,
    LAYER,
    PREDICTIONS,
    PREDICTIONS_TIES,
    alone,
    class_values,
    layer_values,
    masked_lm,
    n_classes,
    norm_of,
    over_tokens,
)
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import (
    ACTIVATIONS,
    Architecture,
    Format,
    Misfit,
    layers,
    need,
    their_activation,
    within,
)
from kinfolk.runs.huggingface.places import InThrees, Table

OUTER: Table = {
    **within("embedding", EMBEDDING),
    "encoder.shared.*.table": "encoder.rel_embeddings",
    "encoder.shared.*.norm": "encoder.LayerNorm",
}
# how the first release's own code names its head, which their class does not read
HEADS = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
UNUSED = ("cls.*", "mask_predictions.*", "pooler.*", "classifier.*", "deberta.encoder.LayerNorm.*")


def architectures(name: str) -> tuple[Architecture, ...]:
    """Return the heads of either release."""
    return (
        alone(name, *UNUSED),
        Architecture(
            f"{name}ForMaskedLM",
            MaskedLMHead,
            lambda config: masked_lm(config).replace(norm=norm_of(config, 1e-7)),
            table=PREDICTIONS,
            ties=PREDICTIONS_TIES,
            unused=UNUSED[1:],
        ),
        Architecture(
            f"{name}ForSequenceClassification",
            ClassHead,
            lambda config: ClassHead(
                n_classes=n_classes(config), activation=config.choice("pooler_hidden_act", ACTIVATIONS, "gelu")
            ),
            lambda head: class_values(head) | {"pooler_hidden_act": their_activation(head.activation)},
            table={"head.hidden": "pooler.dense", "head.output": "classifier"},
            unused=(*UNUSED[:2], *UNUSED[4:]),
        ),
        *over_tokens(name, *UNUSED[:3], *UNUSED[4:]),
    )


class Releases(Format):
    """What the two share."""

    prefix = "deberta."
    key_bias: ClassVar[bool]
    refuses = "conv_kernel_size, talking_head, embedding_size other than hidden_size, an untied output layer"

    def model(self, config: Config, head: Head) -> Model:
        width, n_heads = config.number("hidden_size"), config.number("num_attention_heads")
        config.fixed(embedding_size=width, pooler_hidden_size=width, attention_head_size=width // n_heads)
        config.fixed(talking_head=False, conv_kernel_size=0)
        # of how tensors are named, and of heads and layers that ask themselves or are not there
        config.idle("legacy", "tie_word_embeddings", "pooler_hidden_act", "conv_act", "conv_groups", "padding_idx")
        norm, max_len = norm_of(config, 1e-7), config.number("max_position_embeddings", 512)
        attention = DisentangledAttention(
            n_heads=n_heads,
            dropout=config.get("attention_probs_dropout_prob", 0.1),
            position=self.distances(config, norm, max_len),
            key_bias=self.key_bias,
        )
        activation = config.choice("hidden_act", ACTIVATIONS, "gelu")
        mlp = Dense(d_ff=config.number("intermediate_size"), activation=activation)
        where = Learned() if config.get("position_biased_input", True) else NoPosition()
        return self.assembled(
            config,
            max_len=max_len,
            dropout=config.get("hidden_dropout_prob", 0.1),
            embedding=Tokens(position=where, norm=norm, n_segments=config.get("type_vocab_size", 0)),
            encoder=stack(self_block(attention, mlp, PostNorm(norm=norm)), config.number("num_hidden_layers")),
            head=head,
        )

    def distances(self, config: Config, norm: LayerNorm, max_len: int) -> Disentangled:
        """Return how distances enter; without them, scores are of content alone."""
        given = config.get("pos_att_type", None) or []
        if not isinstance(given, str | list):
            raise config.refusal("pos_att_type", given, ["c2p|p2c"])
        names = [term.strip() for term in given.lower().split("|")] if isinstance(given, str) else list(given)
        terms = tuple(term for term in TERMS if term in names)
        relative = config.get("relative_attention", False)
        if len(terms) < len(names) or bool(terms) != relative:
            raise config.refusal("pos_att_type", given, ["c2p|p2c where relative_attention is true, else none"])
        # a model without distances has these keys to no effect
        farthest, buckets = config.get("max_relative_positions", -1), config.get("position_buckets", -1)
        shared, normed = config.get("share_att_key", False), config.get("norm_rel_ebd", "none")
        if not relative:
            return Disentangled(terms=(), key_bias=self.key_bias)
        return Disentangled(
            terms=terms,
            farthest=0 if farthest < 1 or farthest == max_len else farthest,
            buckets=max(0, buckets),
            maps="attention" if shared else "own",
            norm=norm if "layer_norm" in normed.lower().split("|") else NoNorm(),
            key_bias=self.key_bias,
        )

    def values(self, model: Model) -> dict[str, Any]:
        attention = need(DisentangledAttention, model, "encoder.blocks[0].parts[0]")
        embedding = need(Tokens, model, "embedding")
        where = need(Disentangled, model, "encoder.blocks[0].parts[0].position")
        if attention.key_bias != self.key_bias:
            raise Misfit(f"encoder.blocks[0].parts[0].key_bias is {attention.key_bias}", 3)
        if where.norm != NoNorm():
            need(LayerNorm, model, "encoder.blocks[0].parts[0].position.norm")
        return {
            **self.sizes(model),
            **layer_values(model, attention),
            "max_position_embeddings": model.max_len,
            "type_vocab_size": embedding.n_segments,
            "layer_norm_eps": need(LayerNorm, model, "embedding.norm").eps,
            "position_biased_input": embedding.position != NoPosition(),
            "relative_attention": bool(where.terms),
            "pos_att_type": list(where.terms),
            "max_relative_positions": where.farthest or -1,
            "legacy": True,
        }

    def rename(self, name: str) -> str:
        for old, new in HEADS.items():
            if name.startswith(old):
                return new + name.removeprefix(old)
        return super().rename(name)


class Deberta(Releases, model_type="deberta"):
    """He et al. 2020. Queries and values have a bias, keys have none."""

    key_bias = False
    architectures: ClassVar[tuple[Architecture, ...]] = architectures("Deberta")

    def body(self, model: Model) -> Table:
        attention = need(DisentangledAttention, model, "encoder.blocks[0].parts[0]")
        layer: Table = {
            **{name: place for name, place in LAYER.items() if name != "parts.0.qkv"},
            "parts.0.qkv.qkv.weight": InThrees.at("attention.self.in_proj.weight", n_heads=attention.n_heads),
            "parts.0.qkv.biases": ("attention.self.q_bias", "attention.self.v_bias"),
            "parts.0.position.keys": "attention.self.pos_proj",
            "parts.0.position.queries": "attention.self.pos_q_proj",
        }
        return {**OUTER, **layers("encoder.blocks.*", "encoder.layer.*", layer)}


class DebertaV2(Releases, model_type="deberta-v2"):
    """He et al. 2021. Distances in buckets, often through the maps of content."""

    key_bias = True
    architectures: ClassVar[tuple[Architecture, ...]] = architectures("DebertaV2")
    table: ClassVar[Table] = {
        **OUTER,
        **layers(
            "encoder.blocks.*",
            "encoder.layer.*",
            {
                **LAYER,
                "parts.0.qkv": tuple(f"attention.self.{name}_proj" for name in ("query", "key", "value")),
                "parts.0.position.keys": "attention.self.pos_key_proj",
                "parts.0.position.queries": "attention.self.pos_query_proj",
            },
        ),
    }

    def values(self, model: Model) -> dict[str, Any]:
        where = need(Disentangled, model, "encoder.blocks[0].parts[0].position")
        return super().values(model) | {
            "position_buckets": where.buckets or -1,
            "share_att_key": where.maps == "attention",
            "norm_rel_ebd": "none" if where.norm == NoNorm() else "layer_norm",
        }
