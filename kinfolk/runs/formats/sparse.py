"""BigBird and Longformer: encoders with sparse attention patterns."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from kinfolk.family.assembly import with_mixer, with_mixers
from kinfolk.layers.embeddings.embedding import Tokens
from kinfolk.layers.heads.head import Head
from kinfolk.layers.mixers.attention import Attention
from kinfolk.models.model import Model
from kinfolk.models.stack import Stack
from kinfolk.ops.patterns.leaves import BlockWindow, Full, Global, Pattern, RandomBlocks, Window
from kinfolk.runs.formats.bert import Bert, Encoder, Roberta, pooled, renamed
from kinfolk.runs.huggingface.config import Config
from kinfolk.runs.huggingface.format import Architecture, Misfit, need, need_all
from kinfolk.runs.huggingface.places import Table


def blocks(block: int, n_random: int, max_len: int) -> Pattern:
    """Return the attention pattern of BigBird: neighbouring blocks, the first and the last one, and random ones."""
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
        pooled("BigBird", "bert.pooler", "cls.*"),
        renamed(Bert.architectures[1], ("Bert", "BigBird")),
    )

    def model(self, config: Config, head: Head) -> Model:
        config.only("use_bias", True)
        kind = config.only("attention_type", "block_sparse", "original_full")
        block, n_random = config.number("block_size", 64), config.number("num_random_blocks", 3)
        model = super().model(config, head)
        embedding = need(Tokens, model, "embedding")
        scale = "sqrt" if config.get("rescale_embeddings", False) else "none"
        model = model.replace(embedding=embedding.replace(scale=scale))
        if kind == "original_full":
            return model
        pattern = blocks(block, n_random, model.max_len)
        return with_mixer(model, lambda attention: attention.replace(pattern=pattern))

    def values(self, model: Model) -> dict[str, Any]:
        scaled = {"rescale_embeddings": need(Tokens, model, "embedding").scale == "sqrt"}
        pattern = need(Attention, model, "encoder.blocks[0].parts[0]").pattern
        if pattern == Full():
            return super().values(model) | scaled | {"attention_type": "original_full"}
        drawn = next((part for part in _parts(pattern) if isinstance(part, RandomBlocks)), None)
        if drawn is None:
            raise Misfit("encoder.blocks[0].parts[0].pattern draws no blocks", depth=2)
        sizes = {"block_size": drawn.block, "num_random_blocks": drawn.n}
        return super().values(model) | scaled | sizes | {"attention_type": "block_sparse"}


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
    architectures: ClassVar[tuple[Architecture, ...]] = tuple(
        renamed(one, ("Roberta", "Longformer"), ("roberta.", "longformer.")) for one in Roberta.architectures[:2]
    )

    def model(self, config: Config, head: Head) -> Model:
        # of another format
        config.get("onnx_export", False)
        # of the first release; not read by anybody
        config.idle("attention_mode", "attention_dilation", "autoregressive", "ignore_attention_mask")
        model = super().model(config, head)
        windows = config.get("attention_window", None) or 512
        each = windows if isinstance(windows, list) else [windows] * need(Stack, model, "encoder").n_layers
        return with_mixers(
            model,
            lambda attention, layer: attention.replace(pattern=Window(left=each[layer] // 2, right=each[layer] // 2)),
        )

    def values(self, model: Model) -> dict[str, Any]:
        windows = [2 * window.left for window in need_all(Window, model, "encoder.blocks[*].parts[0].pattern")]
        return super().values(model) | {"attention_window": windows, "sep_token_id": 2}

    def always(self, model: Model, written: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors = {}
        for name, x in written.items():
            head, _, leaf = name.rpartition(".")
            if head.endswith((".self.query", ".self.key", ".self.value")):
                tensors[f"{head}_global.{leaf}"] = x.clone()
        return tensors
