"""Relatives after 2021 at size base have as many parameters as their papers, model cards or released weights say."""

import pytest

import kinfolk as kf
from kinfolk.models.cost import cost

BILLIONS = {
    "deepseek-v3": "671",
    "deltanet": "1.3",
    "gated-deltanet": "1.3",
    "gemma2": "2.61",
    "gemma3": "1.00",
    "gla": "1.3",
    "gpt-j": "6.05",
    "gpt-neox": "20.55",
    "gpt-oss": "20.91",
    "griffin": "2.68",
    "hgrn2": "1.3",
    "hyena": "0.153",
    "jamba": "51.57",
    "llama": "8.03",
    "mamba": "2.77",
    "mamba2": "2.70",
    "mistral": "7.24",
    "mixtral": "46.7",
    "modernbert": "0.149",
    "ngpt": "1.0261",
    "olmo-hybrid": "7.43",
    "olmo2": "7.30",
    "phi": "1.42",
    "qwen2": "7.61",
    "qwen3": "8.19",
    "qwen3-next": "79.67",
    "retnet": "1.3",
    "rwkv6": "1.60",
    "rwkv7": "1.527",
    "smollm3": "3.08",
    "vit": "0.086",
    "xlstm": "6.865",
}
RELEASED = {"xlstm": {"every": 0}}
"""What the released model has and the relative does not by itself."""


@pytest.mark.parametrize("name", BILLIONS)
def test_base_has_the_published_parameters(name):
    """Within one unit of the last digit, because some sources cut digits off instead of rounding."""
    count = cost(kf.relative(name, size="base", **RELEASED.get(name, {})).model, 512).params / 1e9
    digits = len(BILLIONS[name].partition(".")[2])
    assert count == pytest.approx(float(BILLIONS[name]), rel=0, abs=10**-digits)
