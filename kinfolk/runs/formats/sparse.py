"""Encoders that leave pairs out: BigBird and Longformer."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from kinfolk.family.assembly import with_mixer, with_mixers
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.heads.head import Head, MaskedLMHead
from kinfolk.layers.heads.vector_head import VectorHead
from kinfolk.layers.mixers.attention import Attention
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import BlockWindow, Full, Global, Pattern, RandomBlocks, Window
from kinfolk.runs.formats.bert import PREDICTIONS, PREDICTIONS_TIES, Bert, Encoder, Roberta, masked_lm, pooled
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import Architecture, Misfit, need
from kinfolk.runs.huggingface.places import Table


def blocks(block: int, n_random: int, max_len: int) -> Pattern:
    """Return what BigBird looks at: neighbours, the first and the last block, and some drawn ones."""
    n_blocks = -(-max_len // block)
    everywhere = Global(n=block) | Global(n=block, start=(n_blocks - 1) * block)
    return BlockWindow(block=block) | everywhere | RandomBlocks(block=block, n=min(n_random, n_blocks), among=n_blocks)


class BigBird(Encoder, model_type="big_bird"):
    """Zaheer et al. 2020.

    With `attention_type` "block_sparse" the blocks of the relative "bigbird" are seen. Theirs draws other random ones,
    none but the first at evaluation, and sees everything in texts of up to 5 + 2 `num_random_blocks` blocks.
    """

    prefix = "bert."
    refuses = "use_bias false"
    table: ClassVar[Table] = Bert.table
    architectures = (
        Architecture(
            "BigBirdModel",
            VectorHead,
            lambda config: VectorHead(pool="first", activation="tanh" if config.has("*pooler.weight") else "none"),
            table={"head.map": "bert.pooler"},
            unused=("cls.*",),
            bare=True,
        ),
        Architecture(
            "BigBirdForMaskedLM",
            MaskedLMHead,
            masked_lm,
            table=PREDICTIONS,
            ties=PREDICTIONS_TIES,
            unused=("bert.pooler.*", "cls.seq_relationship.*"),
        ),
    )

    def model(self, config: Config, head: Head) -> Model:
        config.only("use_bias", True)
        kind = config.only("attention_type", "block_sparse", "original_full")
        block, n_random = config.number("block_size", 64), config.number("num_random_blocks", 3)
        model = super().model(config, head)
        embedding = need(Tokens, model.embedding, "embedding")
        scale = "sqrt" if config.get("rescale_embeddings", False) else "none"
        model = model.replace(embedding=embedding.replace(scale=scale))
        if kind == "original_full":
            return model
        pattern = blocks(block, n_random, model.max_len)
        return with_mixer(model, lambda look: look.replace(pattern=pattern))

    def values(self, model: Model) -> dict[str, Any]:
        found = super().values(model)
        found["rescale_embeddings"] = need(Tokens, model.embedding, "embedding").scale == "sqrt"
        pattern = need(Stack, model.encoder, "encoder").blocks[0].parts[0].pattern  # type: ignore[attr-defined]
        if pattern == Full():
            return found | {"attention_type": "original_full"}
        drawn = next((part for part in _parts(pattern) if isinstance(part, RandomBlocks)), None)
        if drawn is None:
            raise Misfit("encoder.blocks[0].parts[0].pattern draws no blocks", depth=2)
        sizes = {"block_size": drawn.block, "num_random_blocks": drawn.n}
        return found | sizes | {"attention_type": "block_sparse"}


def _parts(pattern: Pattern) -> list[Pattern]:
    """Return what a union is of."""
    both = [getattr(pattern, name, None) for name in ("a", "b")]
    return [p for part in both if isinstance(part, Pattern) for p in _parts(part)] or [pattern]


class Longformer(Roberta, model_type="longformer"):
    """Beltagy et al. 2020, without global tokens, which theirs gets at each call and has maps of their own for.

    Those maps are left out; an export writes the maps of the other tokens in their place, as theirs begins training.
    """

    prefix = "longformer."
    refuses = "global tokens"
    unused = ("*_global.weight", "*_global.bias")
    architectures = (
        Architecture(
            "LongformerModel",
            VectorHead,
            pooled,
            table={"head.map": "longformer.pooler.dense"},
            unused=("lm_head.*",),
            bare=True,
        ),
        Architecture(
            "LongformerForMaskedLM",
            MaskedLMHead,
            # its activation does not follow the configuration's
            lambda config: masked_lm(config, "gelu"),
            table={"head.transform": "lm_head.dense", "head.norm": "lm_head.layer_norm", "head.bias": "lm_head.bias"},
            ties={"lm_head.decoder.weight": "embedding.table.weight", "lm_head.decoder.bias": "head.bias"},
            unused=("longformer.pooler.*",),
        ),
    )

    def model(self, config: Config, head: Head) -> Model:
        # of another format
        config.get("onnx_export", False)
        for key in ("attention_mode", "attention_dilation", "autoregressive", "ignore_attention_mask"):
            # of the first release; not read by anybody
            config.get(key, None)
        model = super().model(config, head)
        windows = config.get("attention_window", None) or 512
        each = windows if isinstance(windows, list) else [windows] * need(Stack, model.encoder, "encoder").n_layers
        return with_mixers(
            model, lambda look, layer: look.replace(pattern=Window(left=each[layer] // 2, right=each[layer] // 2))
        )

    def values(self, model: Model) -> dict[str, Any]:
        windows = []
        for i, block in enumerate(need(Stack, model.encoder, "encoder").blocks):
            look = need(Attention, block.parts[0], f"encoder.blocks[{i}].parts[0]")
            windows.append(2 * need(Window, look.pattern, f"encoder.blocks[{i}].parts[0].pattern").left)
        return super().values(model) | {"attention_window": windows, "sep_token_id": 2}

    def always(self, model: Model, written: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, x in written.items():
            head, _, leaf = name.rpartition(".")
            if head.endswith((".self.query", ".self.key", ".self.value")):
                found[f"{head}_global.{leaf}"] = x.clone()
        return found
