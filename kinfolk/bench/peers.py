"""The same models as other libraries make them. Each loss takes token ids and targets [B, L] and returns a mean."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.layers.positions.position import sinusoids


def hugging_face(sizes: Mapping[str, Any]) -> nn.Module:
    """Return Hugging Face's GPT-2 with its language modelling head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=sizes["d_model"],
        n_layer=sizes["n_layers"],
        n_head=sizes["n_heads"],
        n_inner=sizes["d_ff"],
        vocab_size=sizes["vocab_size"],
        n_positions=sizes["max_len"],
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def x_transformers(sizes: Mapping[str, Any]) -> nn.Module:
    """Return the decoder of x-transformers with fused attention, learned positions and a tied output layer."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=sizes["d_model"],
        depth=sizes["n_layers"],
        heads=sizes["n_heads"],
        attn_dim_head=sizes["d_model"] // sizes["n_heads"],
        ff_mult=sizes["d_ff"] / sizes["d_model"],
        attn_flash=True,
    )
    return TransformerWrapper(
        num_tokens=sizes["vocab_size"], max_seq_len=sizes["max_len"], attn_layers=layers, tie_embedding=True
    )


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` between one table of embeddings, sinusoids, and the same table as output layer.

    Its two closing norms are taken out: Vaswani et al. 2017 has none, and neither has the relative vanilla.
    """

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        super().__init__()
        d_model, n_layers = sizes["d_model"], sizes["n_layers"]
        self.table = nn.Embedding(sizes["vocab_size"], d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        self.body = nn.Transformer(
            d_model, sizes["n_heads"], n_layers, n_layers, sizes["d_ff"], dropout=0.0, batch_first=True
        )
        self.body.encoder.norm = self.body.decoder.norm = None
        self.scale = d_model**0.5
        self.register_buffer("positions", sinusoids(torch.arange(sizes["max_len"]), d_model).float(), persistent=False)

    def forward(self, source: Tensor, tokens: Tensor) -> Tensor:
        x, y = (self.table(t) * self.scale + self.positions[: t.shape[1]] for t in (source, tokens))  # type: ignore[index]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.body(x, y, tgt_mask=mask, tgt_is_causal=True)
        return F.linear(hidden, self.table.weight)


def mean_loss(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy as everybody writes it."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), label_smoothing=label_smoothing)
