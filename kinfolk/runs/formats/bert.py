"""BERT, and those that keep its body: DistilBERT, RoBERTa, CamemBERT."""

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from kinfolk.family.assembly import self_block, stack
from kinfolk.layers.embeddings.embedding import Embedding, Projected, Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.heads.head import Head, LMHead, MaskedLMHead
from kinfolk.layers.heads.paired_head import PairedHead
from kinfolk.layers.heads.tag_head import SpanHead, TagHead
from kinfolk.layers.heads.vector_head import VectorHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.positions.position import Learned
from kinfolk.layers.residuals.residual import PostNorm
from kinfolk.models.depth.depth import Depth
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.activated_linear import Activation
from kinfolk.ops.pooled_vector import Pool
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, Format, layers, need, their_activation, within
from kinfolk.runs.huggingface.places import Below, Nothing, Table

LAYER: Table = {
    "parts.0.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "parts.0.out": "attention.output.dense",
    "residuals.0.norm": "attention.output.LayerNorm",
    "parts.1.widen": "intermediate.dense",
    "parts.1.narrow": "output.dense",
    "residuals.1.norm": "output.LayerNorm",
}


def norm_of(config: Config, usual: float = 1e-12) -> LayerNorm:
    """Return the norm of a BERT."""
    return LayerNorm(eps=config.get("layer_norm_eps", usual))


def masked_lm(
    config: Config, activation: Activation | None = None, to: Literal["model", "table"] = "model"
) -> MaskedLMHead:
    """Return the head of a masked language model; its activation is the body's if none is given."""
    config.only("tie_word_embeddings", True)
    activation = activation or config.choice("hidden_act", ACTIVATIONS, "gelu")
    return MaskedLMHead(activation=activation, norm=norm_of(config), to=to)


def paired(head: MaskedLMHead) -> Head:
    """Return a head over pairs of passages beside one over hidden tokens."""
    return PairedHead(activation=head.activation, norm=head.norm, to=head.to)


def alone(name: str, *unused: str, pool: Pool = "first") -> Architecture:
    """Return the architecture of a body without a pooler: the vector of one token."""
    return Architecture(f"{name}Model", VectorHead, lambda config: VectorHead(pool=pool), unused=unused, bare=True)


def pooled(name: str, pooler: str, *unused: str) -> Architecture:
    """Return the architecture of a body alone, with its pooler where the file has one."""

    def read(config: Config) -> Head:
        there = config.has(f"*{pooler.partition('.')[2]}.weight")
        return VectorHead(pool="first", activation="tanh" if there else "none")

    return Architecture(f"{name}Model", VectorHead, read, table={"head.map": pooler}, unused=unused, bare=True)


def tied_lm(name: str, place: str) -> Architecture:
    """Return the architecture with an output layer that is tied to the table of tokens but for its bias."""
    ties = {f"{place}.weight": "embedding.table.weight"}
    return Architecture(name, LMHead, lambda config: LMHead(bias=True), table={"head.bias": f"{place}.bias"}, ties=ties)


def renamed(one: Architecture, *changes: tuple[str, str]) -> Architecture:
    """Return the architecture of a kind of checkpoint whose names differ from another's in some words."""

    def name(text: str) -> str:
        return functools.reduce(lambda text, change: text.replace(*change), changes, text)

    table = {ours: name(theirs) if isinstance(theirs, str) else theirs for ours, theirs in one.table.items()}
    return dataclasses.replace(one, name=name(one.name), table=table, unused=tuple(map(name, one.unused)))


def n_classes(config: Config) -> int:
    """Return the number of classes."""
    names, number = config.get("id2label", {}), config.get("num_labels", 0)
    return number or len(names) or 2


def class_values(head: ClassHead) -> dict[str, Any]:
    """Return what a configuration says of classes."""
    names = [f"LABEL_{i}" for i in range(head.n_classes)]
    return {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}


def layer_values(model: Model, attention: Any) -> dict[str, Any]:
    """Return what a configuration says of an encoder: sizes, attention, feed-forward, and rates of dropout."""
    mlp = need(Dense, model, "encoder.blocks[0].parts[1]")
    return {
        "num_hidden_layers": need(Stack, model, "encoder").n_layers,
        "num_attention_heads": attention.n_heads,
        "intermediate_size": mlp.d_ff,
        "hidden_act": their_activation(mlp.activation),
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": attention.dropout,
    }


def over_texts(
    name: str,
    hidden: str,
    output: str,
    *unused: str,
    inside: str = "",
    ties: Mapping[str, str] = MappingProxyType({}),
    **head: Any,
) -> Architecture:
    """Return the architecture that judges a whole text by a hidden layer and an output layer."""
    return Architecture(
        f"{name}ForSequenceClassification",
        ClassHead,
        lambda config: ClassHead(n_classes=n_classes(config), **head),
        class_values,
        table={"head.hidden": hidden, "head.output": output},
        ties=ties,
        unused=unused,
        inside=inside,
    )


def by_last_token(name: str) -> Architecture:
    """Return the architecture of a decoder that judges a text by its last token, without a bias."""
    table: Table = {"head.output.weight": "score.weight", "head.output.bias": Nothing.at()}
    judging = over_texts(name, "", "", "lm_head.*", pool="last")
    return dataclasses.replace(judging, table=table)


def over_tokens(name: str, *unused: str, answering: str = "QuestionAnswering") -> tuple[Architecture, ...]:
    """Return the architectures that judge every token; the body's pooler has no part in them."""
    return (
        Architecture(
            f"{name}ForTokenClassification",
            TagHead,
            lambda config: TagHead(n_tags=n_classes(config)),
            lambda head: class_values(ClassHead(n_classes=head.n_tags)),
            table={"head.output": "classifier", "head.bias": "classifier.bias"},
            unused=unused,
        ),
        Architecture(f"{name}For{answering}", SpanHead, _span, table={"head.output": "qa_outputs"}, unused=unused),
    )


def _span(config: Config) -> Head:
    # a first and a last token; more outputs are no answer
    config.only("num_labels", 2)
    return SpanHead()


class Encoder(Format):
    """What the bodies share: learned positions, post-norm, and a norm behind the embedding."""

    first: ClassVar[int] = 0  # the row of the first position
    keys: ClassVar[dict[str, str]] = {}  # where a kind has its own name for a number

    def model(self, config: Config, head: Head) -> Model:
        key = {name: self.keys.get(name, name) for name in NUMBERS}
        # of account for a head over the vocabulary only, which asks itself
        config.get("tie_word_embeddings", True)
        config.fixed(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
        config.only("sinusoidal_pos_embds", False, True)
        dropout = config.get(key["attention_probs_dropout_prob"], 0.1)
        attention = Attention(n_heads=config.number(key["num_attention_heads"]), dropout=dropout)
        activation = config.choice(key["hidden_act"], ACTIVATIONS, "gelu")
        mlp = Dense(d_ff=config.number(key["intermediate_size"]), activation=activation)
        block = self_block(attention, mlp, PostNorm(norm=norm_of(config)))
        return self.assembled(
            config,
            max_len=config.number("max_position_embeddings", 512) - self.first,
            dropout=config.get(key["hidden_dropout_prob"], 0.1),
            embedding=self.embedding(config),
            encoder=self.depth(stack(block, config.number(key["num_hidden_layers"])), config),
            head=head,
        )

    def embedding(self, config: Config) -> Embedding:
        """Return the embedding: tokens, positions and segments."""
        return Tokens(position=Learned(), norm=norm_of(config), n_segments=config.number("type_vocab_size", 2))

    def depth(self, depth: Stack, config: Config) -> Depth:
        """Return the layers, which some kinds share."""
        return depth

    def values(self, model: Model) -> dict[str, Any]:
        tokens = "embedding.of" if isinstance(model.embedding, Projected) else "embedding"
        values = {
            **self.sizes(model),
            **layer_values(model, need(Attention, model, "encoder.blocks[0].parts[0]")),
            "max_position_embeddings": model.max_len + self.first,
            "type_vocab_size": need(Tokens, model, tokens).n_segments,
            "layer_norm_eps": need(LayerNorm, model, f"{tokens}.norm").eps,
            "tie_word_embeddings": True,
        }
        return {self.keys.get(key, key): value for key, value in values.items()}


NUMBERS = (
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)

PREDICTIONS: dict[str, str] = {
    "head.transform": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.bias": "cls.predictions.bias",
}
PREDICTIONS_TIES = {
    "cls.predictions.decoder.weight": "embedding.table.weight",
    "cls.predictions.decoder.bias": "head.bias",
}

EMBEDDING: Table = {
    "table": "embeddings.word_embeddings",
    "position.table": "embeddings.position_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}


class Bert(Encoder, model_type="bert"):
    """Devlin et al. 2019."""

    prefix = "bert."
    table: ClassVar[Table] = {
        **within("embedding", EMBEDDING),
        **layers("encoder.blocks.*", "encoder.layer.*", LAYER),
    }
    architectures: ClassVar[tuple[Architecture, ...]] = (
        pooled("Bert", "bert.pooler.dense", "cls.*"),
        Architecture(
            "BertForMaskedLM",
            MaskedLMHead,
            masked_lm,
            table=PREDICTIONS,
            ties=PREDICTIONS_TIES,
            unused=("bert.pooler.*", "cls.seq_relationship.*"),
        ),
        Architecture(
            "BertForPreTraining",
            PairedHead,
            lambda config: paired(masked_lm(config)),
            table=PREDICTIONS | {"head.judge.hidden": "bert.pooler.dense", "head.judge.output": "cls.seq_relationship"},
            ties=PREDICTIONS_TIES,
        ),
        over_texts("Bert", "bert.pooler.dense", "classifier", "cls.*", "lm_head.*", activation="tanh"),
        *over_tokens("Bert", "bert.pooler.*", "cls.*", "lm_head.*"),
    )


class DistilBert(Encoder, model_type="distilbert"):
    """Sanh et al. 2019: half the layers, no segments, no pooler."""

    prefix = "distilbert."
    width = "dim"
    keys: ClassVar[dict[str, str]] = {
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }
    table: ClassVar[Table] = {
        "embedding.table": "embeddings.word_embeddings",
        "embedding.position.table": "embeddings.position_embeddings",
        "embedding.norm": "embeddings.LayerNorm",
        **layers(
            "encoder.blocks.*",
            "transformer.layer.*",
            {
                "parts.0.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
                "parts.0.out": "attention.out_lin",
                "residuals.0.norm": "sa_layer_norm",
                "parts.1.widen": "ffn.lin1",
                "parts.1.narrow": "ffn.lin2",
                "residuals.1.norm": "output_layer_norm",
            },
        ),
    }
    architectures: ClassVar[tuple[Architecture, ...]] = (
        alone("DistilBert", "vocab_*"),
        Architecture(
            "DistilBertForMaskedLM",
            MaskedLMHead,
            lambda config: MaskedLMHead(activation=config.choice("activation", ACTIVATIONS, "gelu")),
            table={
                "head.transform": "vocab_transform",
                "head.norm": "vocab_layer_norm",
                "head.bias": "vocab_projector.bias",
            },
            ties={"vocab_projector.weight": "embedding.table.weight"},
        ),
        over_texts("DistilBert", "pre_classifier", "classifier", "vocab_*", activation="relu"),
        *over_tokens("DistilBert", "vocab_*"),
    )

    def embedding(self, config: Config) -> Embedding:
        return Tokens(position=Learned(), norm=LayerNorm(eps=1e-12))

    def values(self, model: Model) -> dict[str, Any]:
        # what this kind has no key for is as it always is there, or the model is not of this kind
        without = ("type_vocab_size", "layer_norm_eps")
        return {key: value for key, value in super().values(model).items() if key not in without}


class Roberta(Encoder, model_type="roberta"):
    """Liu et al. 2019: positions are counted from behind the padding's id."""

    prefix = "roberta."
    first = 2
    table: ClassVar[Table] = {
        **Bert.table,
        "embedding.position.table": Below.at("embeddings.position_embeddings", skip=2),
    }
    architectures: ClassVar[tuple[Architecture, ...]] = (
        pooled("Roberta", "roberta.pooler.dense", "lm_head.*"),
        Architecture(
            "RobertaForMaskedLM",
            MaskedLMHead,
            # its activation does not follow the configuration's
            lambda config: masked_lm(config, "gelu"),
            table={"head.transform": "lm_head.dense", "head.norm": "lm_head.layer_norm", "head.bias": "lm_head.bias"},
            ties={"lm_head.decoder.weight": "embedding.table.weight", "lm_head.decoder.bias": "head.bias"},
            unused=("roberta.pooler.*",),
        ),
        over_texts(
            "Roberta", "classifier.dense", "classifier.out_proj", "lm_head.*", "roberta.pooler.*", activation="tanh"
        ),
        *over_tokens("Roberta", "lm_head.*", "roberta.pooler.*"),
    )

    def model(self, config: Config, head: Head) -> Model:
        # the row of the first position follows from it
        config.only("pad_token_id", 1)
        return super().model(config, head)

    def values(self, model: Model) -> dict[str, Any]:
        return super().values(model) | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


class Camembert(Roberta, model_type="camembert"):
    """Martin et al. 2020: RoBERTa in French."""

    architectures: ClassVar[tuple[Architecture, ...]] = tuple(
        renamed(one, ("Roberta", "Camembert")) for one in Roberta.architectures
    )
