"""ALBERT and ELECTRA: encoders with factorised token embeddings."""

from typing import Any, ClassVar

from kinfolk.family.assembly import shared
from kinfolk.layers.embeddings.embedding import Embedding, Projected
from kinfolk.layers.heads.detection_head import DetectionHead
from kinfolk.layers.heads.head import MaskedLMHead
from kinfolk.layers.heads.paired_head import PairedHead
from kinfolk.models.depth.depth import Depth
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.runs.formats.bert import (
    EMBEDDING,
    LAYER,
    Encoder,
    alone,
    masked_lm,
    over_texts,
    over_tokens,
    paired,
    pooled,
)
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, layers, need, within
from kinfolk.runs.huggingface.places import Table


class Narrow(Encoder):
    """What the two share: an embedding of `embedding_size`, and a map to the width of the model."""

    mapped: ClassVar[bool] = True  # whether there is a map between equal widths

    def embedding(self, config: Config) -> Embedding:
        narrow, wide = config.number("embedding_size", 128), config.number("hidden_size")
        inner = super().embedding(config)
        return Projected(of=inner, d_inner=narrow) if self.mapped or narrow != wide else inner

    def values(self, model: Model) -> dict[str, Any]:
        outer = model.embedding
        width = outer.d_inner if isinstance(outer, Projected) else model.d_model
        return super().values(model) | {"embedding_size": width}


class Albert(Narrow, model_type="albert"):
    """Lan et al. 2020: one group of layers, or a few, run again and again."""

    prefix = "albert."
    refuses = "inner_group_num above 1"
    table: ClassVar[Table] = {
        **within("embedding.inner", EMBEDDING),
        "embedding.outer": "encoder.embedding_hidden_mapping_in",
        **layers(
            "encoder.blocks.*",
            "encoder.albert_layer_groups.*.albert_layers.0",
            {
                "parts.0.qkv": ("attention.query", "attention.key", "attention.value"),
                "parts.0.out": "attention.dense",
                "residuals.0.norm": "attention.LayerNorm",
                "parts.1.widen": "ffn",
                "parts.1.narrow": "ffn_output",
                "residuals.1.norm": "full_layer_layer_norm",
            },
        ),
    }
    predictions: ClassVar[dict[str, str]] = {
        "head.transform": "predictions.dense",
        "head.norm": "predictions.LayerNorm",
        "head.bias": "predictions.bias",
    }
    tied: ClassVar[dict[str, str]] = {
        "predictions.decoder.weight": "embedding.inner.table.weight",
        "predictions.decoder.bias": "head.bias",
    }
    architectures: ClassVar[tuple[Architecture, ...]] = (
        pooled("Albert", "albert.pooler", "predictions.*", "sop_classifier.*"),
        Architecture(
            "AlbertForMaskedLM",
            MaskedLMHead,
            lambda config: masked_lm(config, to="table"),
            table=predictions,
            ties=tied,
            unused=("albert.pooler.*", "sop_classifier.*"),
        ),
        Architecture(
            "AlbertForPreTraining",
            PairedHead,
            lambda config: paired(masked_lm(config, to="table")),
            table=predictions
            | {"head.judge.hidden": "albert.pooler", "head.judge.output": "sop_classifier.classifier"},
            ties=tied,
        ),
        over_texts("Albert", "albert.pooler", "classifier", "predictions.*", "sop_classifier.*", activation="tanh"),
        *over_tokens("Albert", "albert.pooler.*", "predictions.*", "sop_classifier.*"),
    )

    def depth(self, depth: Stack, config: Config) -> Depth:
        config.only("inner_group_num", 1)
        # of the release on TensorFlow; not read by anybody
        config.idle("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks")
        return shared(depth, config.number("num_hidden_groups", 1))

    def values(self, model: Model) -> dict[str, Any]:
        groups = {"num_hidden_groups": len(need(Stack, model, "encoder").blocks), "inner_group_num": 1}
        return super().values(model) | groups


class Electra(Narrow, model_type="electra"):
    """Clark et al. 2020: the generator is a masked language model, the discriminator detects its tokens."""

    prefix = "electra."
    mapped = False
    table: ClassVar[Table] = {
        **within("embedding.inner", EMBEDDING),
        **within("embedding", EMBEDDING),
        "embedding.outer": "embeddings_project",
        **layers("encoder.blocks.*", "encoder.layer.*", LAYER),
    }
    architectures: ClassVar[tuple[Architecture, ...]] = (
        alone("Electra", "discriminator_predictions.*", "generator_*"),
        Architecture(
            "ElectraForMaskedLM",
            MaskedLMHead,
            # its activation does not follow the configuration's
            lambda config: masked_lm(config, "gelu", "table"),
            table={
                "head.transform": "generator_predictions.dense",
                "head.norm": "generator_predictions.LayerNorm",
                "head.bias": "generator_lm_head.bias",
            },
        ),
        Architecture(
            "ElectraForPreTraining",
            DetectionHead,
            lambda config: DetectionHead(activation=config.choice("hidden_act", ACTIVATIONS, "gelu")),
            table={
                "head.hidden": "discriminator_predictions.dense",
                "head.output": "discriminator_predictions.dense_prediction",
            },
        ),
        over_texts(
            "Electra", "classifier.dense", "classifier.out_proj", "discriminator_predictions.*", activation="gelu"
        ),
        *over_tokens("Electra", "discriminator_predictions.*"),
    )

    def tied_to(self, model: Model) -> dict[str, str]:
        inner = ".inner" if isinstance(model.embedding, Projected) else ""
        return {"generator_lm_head.weight": f"embedding{inner}.table.weight"}
