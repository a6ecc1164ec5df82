"""One attention layer as other libraries make it, with projections before and after: [B, L, D] to [B, L, D].

Where a library has no output projection of its own (Hugging Face keeps it in another class), a linear map follows.
"""

import contextlib
import functools
import importlib
import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.bench.contest import BenchContestant
from kinfolk.bench.recurrent_peers import HUGGING, NaiveRecurrence

Settings = Mapping[str, Any]


def layer(contestant: BenchContestant, sizes: Settings) -> nn.Module:
    """Return a peer's layer."""
    return PEERS[contestant.how](contestant.settings, sizes)


class DensePeer(nn.Module):
    """What every layer is held against: packed projections around PyTorch's own causal attention."""

    def __init__(self, settings: Settings, sizes: Settings) -> None:
        super().__init__()
        d_model, self.n_heads = sizes["d_model"], sizes["n_heads"]
        self.inputs, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.inputs(x).chunk(3, dim=-1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Followed(nn.Module):
    """A layer that takes or returns several things or lacks its output projection, made to look like the others.

    given, options: what the layer takes besides its input.
    """

    def __init__(self, inner: nn.Module, d_model: int = 0, *given: Any, **options: Any) -> None:
        super().__init__()
        self.inner, self.given, self.options = inner, given, options
        self.out = nn.Linear(d_model, d_model) if d_model else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x, *self.given, **self.options)
        return self.out(y[0] if isinstance(y, tuple) else y)


def _library(path: str, settings: Settings, sizes: Settings) -> nn.Module:
    """Return a layer of a class that takes a width, heads and their width; its other arguments are the settings."""
    module, _, name = path.rpartition(".")
    # performer-pytorch prints what it does without
    with contextlib.redirect_stdout(io.StringIO()):
        kind = getattr(importlib.import_module(module), name)
        width = sizes["d_model"] // sizes["n_heads"]
        return kind(dim=sizes["d_model"], heads=sizes["n_heads"], dim_head=width, **settings)


def _linformer(settings: Settings, sizes: Settings) -> nn.Module:
    return _library("linformer.LinformerSelfAttention", {**settings, "seq_len": sizes["length"]}, sizes)


def _x_transformers(settings: Settings, sizes: Settings) -> nn.Module:
    return Followed(_library("x_transformers.x_transformers.Attention", settings, sizes))


def _hugging_face(settings: Settings, sizes: Settings) -> nn.Module:
    return Followed(HUGGING[settings["kind"]](sizes["d_model"], sizes["n_heads"]))


def _longformer(settings: Settings, sizes: Settings) -> nn.Module:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["n_heads"],
        attention_window=[settings["window"]],
        attention_probs_dropout_prob=0.0,
        num_hidden_layers=1,
    )
    # one token sees and is seen by all
    mask = torch.zeros(1, sizes["length"])
    mask[:, 0] = 10000.0
    masks = {"is_index_masked": mask < 0, "is_index_global_attn": mask > 0, "is_global_attn": True}
    return Followed(LongformerSelfAttention(config, 0), sizes["d_model"], mask, **masks)


def _bigbird(settings: Settings, sizes: Settings) -> nn.Module:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["n_heads"],
        block_size=settings["block"],
        num_random_blocks=settings["n_random"],
        max_position_embeddings=sizes["length"],
        attention_probs_dropout_prob=0.0,
    )
    ones = torch.ones(1, sizes["length"])
    blocked, *masks = BigBirdModel.create_masks_for_block_sparse_attn(ones, settings["block"])
    return Followed(BigBirdBlockSparseAttention(config, seed=0), sizes["d_model"], *masks, blocked, blocked)


def _reformer(settings: Settings, sizes: Settings) -> nn.Module:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    config = ReformerConfig(
        hidden_size=sizes["d_model"],
        num_attention_heads=sizes["n_heads"],
        attention_head_size=sizes["d_model"] // sizes["n_heads"],
        lsh_attn_chunk_length=settings["chunk"],
        num_hashes=settings["n_rounds"],
        num_buckets=2 * sizes["length"] // settings["chunk"],
        lsh_attention_probs_dropout_prob=0.0,
        max_position_embeddings=sizes["length"],
        is_decoder=True,
    )
    return Followed(LSHSelfAttention(config), sizes["d_model"])


PEERS: dict[str, Callable[[Settings, Settings], nn.Module]] = {
    "sdpa": DensePeer,
    "local-attention": functools.partial(_library, "local_attention.transformer.LocalMHA"),
    "longformer": _longformer,
    "bigbird": _bigbird,
    "reformer": _reformer,
    "reformer-pytorch": functools.partial(_library, "reformer_pytorch.LSHSelfAttention"),
    "performer": functools.partial(_library, "performer_pytorch.SelfAttention"),
    "linear": functools.partial(_library, "linear_attention_transformer.linear_attention_transformer.SelfAttention"),
    "linformer": _linformer,
    "x-transformers": _x_transformers,
    "transformers": _hugging_face,
    "fla": NaiveRecurrence,
}
