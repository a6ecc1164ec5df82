"""One attention layer as other libraries make it, with projections before and after: [B, L, D] to [B, L, D].

Where a library has no output projection of its own (Hugging Face keeps it in another class), a linear map follows.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.bench.contest import BenchContestant
from kinfolk.bench.recurrent_peers import Hugging, NaiveRecurrence


def layer(contestant: BenchContestant, sizes: Mapping[str, Any]) -> nn.Module:
    """Return a peer's layer."""
    made: nn.Module = PEERS[contestant.how](contestant.settings, sizes)
    return made


class DensePeer(nn.Module):
    """What every layer is held against: packed projections around PyTorch's own causal attention."""

    def __init__(self, settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
        super().__init__()
        d_model, self.n_heads = sizes["d_model"], sizes["n_heads"]
        self.inputs, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.inputs(x).chunk(3, dim=-1))
        y: Tensor = self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return y


class Followed(nn.Module):
    """A layer that returns several things or lacks its output projection, made to look like the others."""

    def __init__(self, inner: nn.Module, call: Callable[[nn.Module, Tensor], Tensor], d_model: int = 0) -> None:
        super().__init__()
        self.inner, self.call = inner, call
        self.out = nn.Linear(d_model, d_model) if d_model else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.call(self.inner, x))
        return y


def _local(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
    from local_attention.transformer import LocalMHA

    width = sizes["d_model"] // sizes["n_heads"]
    made: nn.Module = LocalMHA(
        dim=sizes["d_model"],
        window_size=settings["window"],
        dim_head=width,
        heads=sizes["n_heads"],
        causal=True,
        exact_windowsize=True,
    )
    return made


def _longformer(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
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

    def call(inner: nn.Module, x: Tensor) -> Tensor:
        is_global = mask > 0
        y: Tensor = inner(x, mask, is_index_masked=mask < 0, is_index_global_attn=is_global, is_global_attn=True)[0]
        return y

    return Followed(LongformerSelfAttention(config, 0), call, sizes["d_model"])


def _bigbird(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
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
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(ones, settings["block"])

    def call(inner: nn.Module, x: Tensor) -> Tensor:
        found = inner(x, band, rows, columns, blocked, blocked)
        y: Tensor = found[0] if isinstance(found, tuple) else found
        return y

    return Followed(BigBirdBlockSparseAttention(config, seed=0), call, sizes["d_model"])


def _reformer(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
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
    return Followed(LSHSelfAttention(config), lambda inner, x: inner(x).hidden_states, sizes["d_model"])


def _reformer_pytorch(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
    from reformer_pytorch import LSHSelfAttention

    made: nn.Module = LSHSelfAttention(
        dim=sizes["d_model"],
        heads=sizes["n_heads"],
        bucket_size=settings["chunk"],
        n_hashes=settings["n_rounds"],
        causal=True,
        allow_duplicate_attention=False,
    )
    return made


def _performer(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        from performer_pytorch import SelfAttention

        made: nn.Module = SelfAttention(
            dim=sizes["d_model"],
            heads=sizes["n_heads"],
            dim_head=sizes["d_model"] // sizes["n_heads"],
            causal=settings["causal"],
        )
    return made


def _linear(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    made: nn.Module = SelfAttention(sizes["d_model"], sizes["n_heads"], causal=settings["causal"])
    return made


def _linformer(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
    from linformer import LinformerSelfAttention

    made: nn.Module = LinformerSelfAttention(
        sizes["d_model"], seq_len=sizes["length"], k=settings["rank"], heads=sizes["n_heads"]
    )
    return made


def _x_transformers(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> nn.Module:
    from x_transformers.x_transformers import Attention

    width = sizes["d_model"] // sizes["n_heads"]
    inner = Attention(dim=sizes["d_model"], dim_head=width, heads=sizes["n_heads"], causal=True, flash=True)

    def call(attention: nn.Module, x: Tensor) -> Tensor:
        found = attention(x)
        y: Tensor = found[0] if isinstance(found, tuple) else found
        return y

    return Followed(inner, call)


PEERS: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], nn.Module]] = {
    "sdpa": DensePeer,
    "local-attention": _local,
    "longformer": _longformer,
    "bigbird": _bigbird,
    "reformer": _reformer,
    "reformer-pytorch": _reformer_pytorch,
    "performer": _performer,
    "linear": _linear,
    "linformer": _linformer,
    "x-transformers": _x_transformers,
    "transformers": Hugging,
    "fla": NaiveRecurrence,
}
