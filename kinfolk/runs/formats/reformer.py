"""Reformer: reversible layers with LSH attention or local chunks, and a head over both streams."""

from typing import Any, ClassVar

from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.heads.head import Head, LMHead
from kinfolk.layers.heads.tag_head import SpanHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.mixers.lsh_attention import Hashed, Hashing
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.part import Part
from kinfolk.layers.positions.axial import AxialPositions
from kinfolk.layers.positions.position import Learned, Position
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.block import Block
from kinfolk.models.depth.reversible import Reversible
from kinfolk.models.model import Model
from kinfolk.ops.lsh_attention import Chunks
from kinfolk.ops.patterns.algebra import Both
from kinfolk.ops.patterns.leaves import Causal, Local1D
from kinfolk.runs.formats.bert import alone, class_values, n_classes, norm_of
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, Format, Misfit, layers, need, their_activation
from kinfolk.runs.huggingface.places import Spread, Table

LAYER: Table = {
    "parts.0.qv": ("attention.self_attention.query_key", "attention.self_attention.value"),
    "parts.0.qkv": tuple(f"attention.self_attention.{name}" for name in ("query", "key", "value")),
    "parts.0.out": "attention.output.dense",
    "residuals.0.of.norm": "attention.layer_norm",
    "parts.1.widen": "feed_forward.dense.dense",
    "parts.1.narrow": "feed_forward.output.dense",
    "residuals.1.of.norm": "feed_forward.layer_norm",
}

OF_KINDS = ("attention_probs_dropout_prob", "attn_chunk_length", "num_chunks_before", "num_chunks_after")
IDLE = [f"{kind}_{key}" for kind in ("lsh", "local") for key in OF_KINDS]
IDLE += ["num_buckets", "num_hashes", "hash_seed", "axial_pos_shape", "axial_pos_embds_dim"]


STALE = ["attention_probs_dropout_prob", "intermediate_size", "type_vocab_size", "seed"]
STALE += ["num_chunks_before", "num_chunks_after", "attn_chunk_length", "chunk_length"]
"""Keys of folders of 2020 that no class reads any more."""


class Reformer(Format, model_type="reformer"):
    """Kitaev et al. 2020. Where `hash_seed` says nothing, theirs hashes with other numbers at each call, ours never."""

    prefix = "reformer."
    # values that are put where a key is hidden; files of 2020 have them
    buffers = ("*position_ids", "*mask_value_float16", "*mask_value_float32")
    refuses = "is_decoder false with local layers, chunks looked at besides the one before"
    table: ClassVar[Table] = {
        "embedding.table": "embeddings.word_embeddings",
        "embedding.position.table": "embeddings.position_embeddings.embedding",
        "embedding.position.rows.weight": Spread.at("embeddings.position_embeddings.weights.0", axis=1),
        "embedding.position.columns.weight": Spread.at("embeddings.position_embeddings.weights.1", axis=0),
        **layers("encoder.blocks.*", "encoder.layers.*", LAYER),
        **layers("decoder.blocks.*", "encoder.layers.*", LAYER),
        "encoder.norm": "encoder.layer_norm",
        "decoder.norm": "encoder.layer_norm",
    }
    architectures: ClassVar[tuple[Architecture, ...]] = (
        alone("Reformer", "lm_head.*"),
        Architecture(
            "ReformerModelWithLMHead",
            LMHead,
            lambda config: LMHead(weights="untied", bias=True),
            table={"head.untied": "lm_head.decoder", "head.bias": "lm_head.bias"},
            ties={"lm_head.decoder.bias": "head.bias"},
        ),
        Architecture(
            "ReformerForSequenceClassification",
            ClassHead,
            lambda config: ClassHead(
                n_classes=n_classes(config), activation="tanh", d_hidden=config.number("hidden_size")
            ),
            class_values,
            table={"head.hidden": "classifier.dense", "head.output": "classifier.out_proj"},
            unused=("lm_head.*",),
        ),
        Architecture(
            "ReformerForQuestionAnswering",
            SpanHead,
            lambda config: SpanHead(),
            table={"head.output": "qa_outputs"},
            unused=("lm_head.*",),
        ),
    )

    def model(self, config: Config, head: Head) -> Model:
        config.only("tie_word_embeddings", False)
        # of memory and of training, and of layers and positions that may not be there
        config.idle("chunk_size_lm_head", "axial_norm_std", *IDLE, *STALE)
        kinds = config.get("attn_layers")
        if not isinstance(kinds, list) or not kinds or set(kinds) - {"lsh", "local"}:
            raise config.refusal("attn_layers", kinds, ["lsh", "local"])
        config.only("num_hidden_layers", len(kinds))
        decodes, norm = config.get("is_decoder", False), norm_of(config)
        if not decodes and "local" in kinds:
            # their first chunk then attends to the last one, wherever that is
            raise config.refusal("is_decoder", False, [True])
        mlp = Dense(
            d_ff=config.number("feed_forward_size"), activation=config.choice("hidden_act", ACTIVATIONS, "relu")
        )
        attentions = {kind: self.attentions(config, kind, decodes) for kind in sorted(set(kinds))}
        blocks = tuple(Block(parts=(attentions[kind], mlp), residual=PreNorm(norm=norm)) for kind in kinds)
        depth = Reversible(blocks=blocks, order=tuple(range(len(kinds))), norm=norm, join="wide")
        return self.assembled(
            config,
            max_len=config.number("max_position_embeddings", 4096),
            dropout=config.get("hidden_dropout_prob", 0.05),
            embedding=Tokens(position=self.where(config)),
            encoder=None if decodes else depth,
            decoder=depth if decodes else None,
            head=head,
        )

    def attentions(self, config: Config, kind: str, decodes: bool) -> Part:
        """Return the attention of a kind of layers; what another kind needs may be missing."""
        width, n_heads = config.number("hidden_size"), config.number("num_attention_heads", 12)
        d_head = config.number("attention_head_size", 64)
        d_head = 0 if d_head * n_heads == width else d_head
        size, before = config.number(f"{kind}_attn_chunk_length", 64), config.get(f"{kind}_num_chunks_before", 1)
        config.only(f"{kind}_num_chunks_after", 0, *([1] if decodes and kind == "local" else []))
        if kind == "local":
            pattern = Causal() & Local1D(block=size, memory=size * before)
            dropout = config.get("local_attention_probs_dropout_prob", 0.05)
            return Attention(n_heads=n_heads, d_head=d_head, pattern=pattern, bias=False, dropout=dropout)
        if before != 1:
            raise config.refusal("lsh_num_chunks_before", before, [1])
        buckets, seed = config.get("num_buckets", None), config.get("hash_seed", None)
        sizes = [buckets] if isinstance(buckets, int) else buckets or []
        hashing = Hashing(
            n_rounds=config.number("num_hashes", 1),
            buckets=tuple(sizes),
            seed=seed or 0,
            draws="own" if seed is None else "plain",
        )
        return Hashed(
            n_heads=n_heads,
            d_head=d_head,
            direction="past" if decodes else "both",
            sight=Chunks(size=size, within="chunk"),
            hashing=hashing,
            repeats="each",
            bias=False,
        )

    def where(self, config: Config) -> Position:
        """Return the positions of tokens."""
        if not config.get("axial_pos_embds", True):
            return Learned()
        return AxialPositions(
            shape=tuple(config.get("axial_pos_shape")), widths=tuple(config.get("axial_pos_embds_dim"))
        )

    def values(self, model: Model) -> dict[str, Any]:
        where = "decoder" if model.encoder is None else "encoder"
        depth = need(Reversible, model, where)
        embedding = need(Tokens, model, "embedding")
        values: dict[str, Any] = {}
        kinds: list[str] = []
        for i, block in enumerate(depth.blocks):
            at = f"{where}.blocks[{i}].parts"
            attention, mlp = block.parts[0], need(Dense, model, f"{at}[1]")
            kinds.append("lsh" if isinstance(attention, Hashed) else "local")
            values |= (
                _hashed(attention) if isinstance(attention, Hashed) else _local(need(Attention, model, f"{at}[0]"), at)
            )
            values |= {"feed_forward_size": mlp.d_ff, "hidden_act": their_activation(mlp.activation)}
            heads: int = attention.n_heads  # type: ignore[attr-defined]
            d_head: int = attention.d_head or model.d_model // heads  # type: ignore[attr-defined]
            values |= {"num_attention_heads": heads, "attention_head_size": d_head}
        if isinstance(embedding.position, AxialPositions):
            shape, widths = embedding.position.sizes(model.dims)
            values |= {"axial_pos_embds": True, "axial_pos_shape": list(shape), "axial_pos_embds_dim": list(widths)}
        else:
            values["axial_pos_embds"] = False
        return {
            **values,
            **self.sizes(model),
            "attn_layers": kinds,
            "num_hidden_layers": len(kinds),
            "max_position_embeddings": model.max_len,
            "hidden_dropout_prob": model.dropout,
            "layer_norm_eps": need(LayerNorm, model, f"{where}.norm").eps,
            "is_decoder": model.encoder is None,
            "tie_word_embeddings": False,
        }


def _hashed(attention: Hashed) -> dict[str, Any]:
    plain, buckets = attention.hashing.draws == "plain", attention.hashing.buckets
    return {
        "lsh_attn_chunk_length": attention.sight.size,
        "lsh_num_chunks_before": 1,
        "lsh_num_chunks_after": 0,
        "num_hashes": attention.hashing.n_rounds,
        "num_buckets": None if not buckets else buckets[0] if len(buckets) == 1 else list(buckets),
        "hash_seed": attention.hashing.seed if plain else None,
    }


def _local(attention: Attention, where: str) -> dict[str, Any]:
    pattern = attention.pattern
    near = pattern.b if isinstance(pattern, Both) else None
    if not isinstance(near, Local1D) or near.memory % near.block:
        raise Misfit(f"{where}[0].pattern is {pattern}, not what a chunk sees of the text", where.count("."))
    return {
        "local_attn_chunk_length": near.block,
        "local_num_chunks_before": near.memory // near.block,
        "local_num_chunks_after": 0,
        "local_attention_probs_dropout_prob": attention.dropout,
    }
