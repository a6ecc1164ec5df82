"""Scaled rotary rates are those of transformers' ROPE_INIT_FUNCTIONS, and what the papers say of their ends."""

import pytest
import torch

from kinfolk.layers.positions.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    NTKScaling,
    RopeScaling,
    YarnScaling,
)

K, BASE, MOST = 16, 1e4, 64


def theirs(kind: str, seq_len: int | None = None, **settings: float) -> tuple[torch.Tensor, float]:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=2 * K,
        num_attention_heads=2,
        max_position_embeddings=MOST,
        rope_parameters={"rope_type": kind, "rope_theta": BASE, **settings},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=seq_len)


def ours(scaling: RopeScaling) -> torch.Tensor:
    rates = torch.tensor([BASE ** (-2 * i / K) for i in range(K // 2)], dtype=torch.float64)
    return scaling.rates(rates, BASE)


@pytest.mark.parametrize(
    ("scaling", "kind", "settings"),
    [
        (LinearScaling(factor=3.0), "linear", {"factor": 3.0}),
        (
            Llama3Scaling(factor=8.0, low=1.0, high=4.0, original=MOST),
            "llama3",
            {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": MOST,
            },
        ),
        (
            YarnScaling(factor=4.0, original=MOST),
            "yarn",
            {"factor": 4.0, "original_max_position_embeddings": MOST},
        ),
        (
            YarnScaling(factor=4.0, original=MOST, ends="exact", fast=8.0, slow=2.0),
            "yarn",
            {
                "factor": 4.0,
                "original_max_position_embeddings": MOST,
                "truncate": False,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
            },
        ),
    ],
    ids=["linear", "llama3", "yarn", "yarn-exact"],
)
def test_rates_and_length_are_those_of_transformers(scaling, kind, settings):
    rates, magnitude = theirs(kind, **settings)
    torch.testing.assert_close(ours(scaling).float(), rates, rtol=1e-6, atol=0)
    assert scaling.magnitude == pytest.approx(magnitude)
    assert not torch.equal(ours(scaling), ours(NoScaling()))


def test_ntk_is_their_dynamic_one_at_the_length_of_its_factor():
    """Theirs is factor * length / trained - (factor - 1): 4 at twice the trained length for 3."""
    rates, magnitude = theirs("dynamic", seq_len=2 * MOST, factor=3.0)
    torch.testing.assert_close(ours(NTKScaling(factor=4.0)).float(), rates, rtol=1e-6, atol=0)
    assert magnitude == NTKScaling(factor=4.0).magnitude == 1.0
    # the fastest pair keeps its rate, the slowest is divided by the factor
    plain, scaled = ours(NoScaling()), ours(NTKScaling(factor=4.0))
    assert scaled[0] == plain[0]
    assert scaled[-1].item() == pytest.approx(plain[-1].item() / 4.0)
