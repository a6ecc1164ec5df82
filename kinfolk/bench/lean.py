"""A GPT written by hand for nothing but speed: what the composed models are held against.

As lean as nanoGPT (github.com/karpathy/nanoGPT): packed queries, keys and values, one fused attention, tied output, and
nothing that can be chosen. The same function as the relative gpt2; a test copies the weights over.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LeanBlock(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.widen, self.narrow = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Run one layer on [B, L, D]."""
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).split(d, dim=2)
        q, k, v = (t.view(b, n, self.n_heads, d // self.n_heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(b, n, d))
        return x + self.narrow(F.gelu(self.widen(self.norm_2(x)), approximate="tanh"))


class LeanGPT(nn.Module):
    """Token ids and targets in, mean cross-entropy out."""

    def __init__(self, *, d_model: int, n_layers: int, n_heads: int, d_ff: int, vocab_size: int, max_len: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(max_len, d_model)
        self.blocks = nn.ModuleList(LeanBlock(d_model, n_heads, d_ff) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
