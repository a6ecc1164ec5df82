"""Recurrent layers as transformers' torch paths make them, and fla's naive recurrences between projections."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def fla_reference(name: str) -> ModuleType:
    """Load one of fla-core's references by its path: the package around it wants triton."""
    package = importlib.util.find_spec("fla")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "ops" / name / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NaiveRecurrence(nn.Module):
    """Projections, one of fla's recurrent references, and an output projection."""

    def __init__(self, settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
        super().__init__()
        d_model, self.n_heads, self.kind = sizes["d_model"], sizes["n_heads"], settings["kind"]
        # keys of GLA are half as wide as values
        self.widths = [d_model // 2, d_model // 2, d_model] if self.kind == "gla" else [d_model] * 3
        self.inputs = nn.Linear(d_model, sum(self.widths), bias=False)
        self.decays = nn.Linear(d_model, self.widths[0], bias=False)
        self.beta, self.out = nn.Linear(d_model, self.n_heads, bias=False), nn.Linear(d_model, d_model, bias=False)
        self.reference = fla_reference(self.kind)

    def forward(self, x: Tensor) -> Tensor:
        """Read one position after the other."""
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in self.inputs(x).split(self.widths, -1))
        log_decay = F.logsigmoid(self.decays(x)).unflatten(-1, (self.n_heads, -1)) / 16
        if self.kind == "gla":
            y, _ = self.reference.naive_recurrent_gla(q, k, v, log_decay)
        else:
            k = F.normalize(k, dim=-1)
            y, _ = self.reference.naive_recurrent_kda(q, k, v, log_decay, self.beta(x).sigmoid())
        return self.out(y.flatten(2))


def _mamba(d_model: int, n_heads: int) -> nn.Module:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    return MambaMixer(MambaConfig(hidden_size=d_model, num_hidden_layers=1), 0)


def _mamba2(d_model: int, n_heads: int) -> nn.Module:
    from transformers import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    sizes = {"num_heads": n_heads, "head_dim": 2 * d_model // n_heads, "n_groups": 1}
    return Mamba2Mixer(Mamba2Config(hidden_size=d_model, num_hidden_layers=1, **sizes), 0)


def _gated_deltanet(d_model: int, n_heads: int) -> nn.Module:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    d_key = 3 * d_model // (4 * n_heads)
    heads = {"linear_num_value_heads": n_heads, "linear_num_key_heads": n_heads}
    widths = {"linear_key_head_dim": d_key, "linear_value_head_dim": 2 * d_key}
    kinds = {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}
    return Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=d_model, **heads, **widths, **kinds), 0)


def _griffin(d_model: int, n_heads: int) -> nn.Module:
    from transformers import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    class PeerBlock(RecurrentGemmaRecurrentBlock):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x, torch.arange(x.shape[1])[None], None, use_cache=False)

    config = RecurrentGemmaConfig(
        hidden_size=d_model, lru_width=d_model, num_attention_heads=n_heads, num_hidden_layers=1
    )
    block = PeerBlock(config, 0)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.02)
    return block


HUGGING = {"mamba": _mamba, "mamba2": _mamba2, "gated-deltanet": _gated_deltanet, "griffin": _griffin}
