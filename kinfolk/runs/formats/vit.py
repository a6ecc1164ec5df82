"""The Vision Transformer: patches of an image behind a class token."""

from typing import Any, ClassVar

from kinfolk.family.assembly import self_block, stack
from kinfolk.layers.embeddings.patches import Patches
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.heads.class_head import ClassHead
from kinfolk.layers.heads.head import Head
from kinfolk.layers.heads.vector_head import VectorHead
from kinfolk.layers.init import Normal
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.norms.norm import LayerNorm
from kinfolk.layers.residuals.residual import PreNorm
from kinfolk.models.model import Model
from kinfolk.runs.formats.bert import class_values, layer_values, n_classes
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import ACTIVATIONS, Architecture, Format, layers, need
from kinfolk.runs.huggingface.places import Patch, Spread, Table

PICTURES = "preprocessor_config.json"
VALUES = 263  # seven specials and 256 values


def _pooled(config: Config) -> Head:
    config.only("pooler_act", "tanh")
    return VectorHead(pool="first", activation="tanh" if config.has("*pooler.dense.weight") else "none")


class Vit(Format, model_type="vit"):
    """Dosovitskiy et al. 2021. preprocessor_config.json says how values enter; without it mean and std are 0.5."""

    prefix = "vit."
    refuses = "channels with different means, qkv_bias false"
    table: ClassVar[Table] = {
        "embedding.position.table.weight": Spread.at("embeddings.position_embeddings"),
        "embedding.token.weight": Spread.at("embeddings.cls_token"),
        "encoder.norm": "layernorm",
        **layers(
            "encoder.blocks.*",
            "encoder.layer.*",
            {
                "parts.0.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
                "parts.0.out": "attention.output.dense",
                "residuals.0.norm": "layernorm_before",
                "parts.1.widen": "intermediate.dense",
                "parts.1.narrow": "output.dense",
                "residuals.1.norm": "layernorm_after",
            },
        ),
    }
    architectures = (
        Architecture("ViTModel", VectorHead, _pooled, table={"head.map": "vit.pooler.dense"}, bare=True),
        Architecture(
            "ViTForImageClassification",
            ClassHead,
            lambda config: ClassHead(n_classes=n_classes(config)),
            class_values,
            table={"head.output": "classifier"},
        ),
    )

    def model(self, config: Config, head: Head) -> Model:
        config.only("qkv_bias", True)
        # of heads that are not here
        config.get("encoder_stride", 16)
        config.get("pooler_act", "tanh")
        width = config.number("hidden_size")
        config.only("pooler_output_size", width)
        size = config.get("image_size", None) or 224
        rows, columns = size if isinstance(size, list) else (size, size)
        channels = config.number("num_channels", 3)
        mean, std = (self._one(config, key) for key in ("image_mean", "image_std"))
        patches = Patches(columns=columns, channels=channels, patch=config.number("patch_size", 16), mean=mean, std=std)
        norm = LayerNorm(eps=config.get("layer_norm_eps", 1e-12))
        n_heads = config.number("num_attention_heads")
        attention = Attention(n_heads=n_heads, dropout=config.get("attention_probs_dropout_prob", 0.0))
        activation = config.choice("hidden_act", ACTIVATIONS, "gelu")
        mlp = Dense(d_ff=config.number("intermediate_size"), activation=activation)
        block = self_block(attention, mlp, PreNorm(norm=norm))
        return Model(
            d_model=width,
            vocab_size=VALUES,
            max_len=rows * columns * channels,
            dropout=config.get("hidden_dropout_prob", 0.0),
            embedding=patches,
            encoder=stack(block, config.number("num_hidden_layers")).replace(norm=norm),
            head=head,
            init=Normal(std=config.get("initializer_range", 0.02)),
        )

    def _one(self, config: Config, key: str) -> float:
        """Return what all channels have in common."""
        value = config.beside.get(PICTURES, {}).get(key, 0.5)
        each = value if isinstance(value, list) else [value]
        if len(set(each)) != 1:
            raise config.refusal(f"{PICTURES}: {key}", value, ["one number for all channels"])
        return float(each[0])

    def values(self, model: Model) -> dict[str, Any]:
        patches = need(Patches, model, "embedding")
        sizes = {key: value for key, value in self.sizes(model).items() if key != "vocab_size"}
        rows = model.max_len // (patches.columns * patches.channels)
        return {
            **sizes,
            **layer_values(model, need(Attention, model, "encoder.blocks[0].parts[0]")),
            "layer_norm_eps": need(LayerNorm, model, "encoder.norm").eps,
            "image_size": rows if rows == patches.columns else [rows, patches.columns],
            "num_channels": patches.channels,
            "patch_size": patches.patch,
            "qkv_bias": True,
            "pooler_output_size": model.d_model,
        }

    def beside(self, model: Model) -> dict[str, Any]:
        patches = need(Patches, model, "embedding")
        mean, std = ([float(x)] * patches.channels for x in (patches.mean, patches.std))
        rows = model.max_len // (patches.columns * patches.channels)
        values = {
            "image_processor_type": "ViTImageProcessor",
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": mean,
            "image_std": std,
            "rescale_factor": 1 / patches.levels,
            "size": {"height": rows, "width": patches.columns},
        }
        return {PICTURES: values}

    def body(self, model: Model) -> Table:
        channels = need(Patches, model, "embedding").channels
        projection = "embeddings.patch_embeddings.projection"
        return {
            **self.table,
            "embedding.project.weight": Patch.at(f"{projection}.weight", channels=channels),
            "embedding.project.bias": f"{projection}.bias",
        }
