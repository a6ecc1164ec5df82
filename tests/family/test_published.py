"""The parameter column of Narang et al. 2021, table 1, is an oracle for what a value of an axis costs."""

import pytest

import kinfolk as kf
from kinfolk.models.cost import cost

BASE = {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072, "vocab_size": 32128, "max_len": 512}
MILLIONS = {
    ("vanilla-pre", ()): 223,
    ("glu", ()): 223,
    ("geglu", ()): 223,
    ("swiglu", ()): 223,
    ("rmsnorm", (("part", 0.0675),)): 223,
    ("fixup", ()): 223,
    ("moe", (("every", 4),)): 648,
    ("switch", (("every", 4),)): 1100,
    ("transparent", ()): 223,
    ("weighted", ()): 280,
}


@pytest.mark.parametrize(("name", "more"), MILLIONS)
def test_rows_have_the_published_parameters(name, more):
    found = cost(kf.relative(name, size="base", **BASE, **dict(more)).model, 512).params
    # the table rounds to a million; here attention and experts have biases, 0.7 million in 192 experts of full width
    assert found / 1e6 == pytest.approx(MILLIONS[name, more], abs=1.0, rel=2e-3)


def test_experts_and_gates_cost_a_token_what_dense_layers_do():
    plain = cost(kf.relative("vanilla-pre", size="base", **BASE).model, 512).flops_per_token
    for name in ("glu", "moe", "switch"):
        assert cost(kf.relative(name, size="base", **BASE).model, 512).flops_per_token == pytest.approx(plain, rel=0.02)
