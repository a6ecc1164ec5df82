"""The layout of weights for decoding changes how memory is read, and nothing else."""

import pytest
import torch

import kinfolk as kf
from kinfolk.decoding.engines.weight_layout import column_major


@pytest.mark.parametrize("name", ["gpt2", "llama", "vanilla", "mixture-of-softmaxes", "adaptive-softmax", "mamba"])
def test_outputs_shapes_and_tied_weights_stay(name):
    plain, laid = (kf.build(kf.relative(name, size="tiny"), seed=0).eval() for _ in range(2))
    tokens = torch.randint(5, 50, (2, 7), generator=torch.Generator().manual_seed(0))
    inputs = (tokens, tokens) if plain.spec.topology == "encoder-decoder" else (tokens,)
    column_major(laid)
    assert [(n, p.shape) for n, p in laid.named_parameters()] == [(n, p.shape) for n, p in plain.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(laid.parameters(), plain.parameters(), strict=True))
    torch.testing.assert_close(laid(*inputs).logits, plain(*inputs).logits, rtol=1e-4, atol=1e-4)


def test_wide_matrices_are_stored_by_columns_and_others_by_rows():
    model = column_major(kf.build(kf.relative("gpt2", size="tiny"), seed=0))
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and ("qkv" in n or "out" in n or "head" in n)]
    assert {p.shape[0] > p.shape[1] for p in matrices} == {True, False}
    for p in matrices:
        assert p.t().is_contiguous() if p.shape[0] > p.shape[1] else p.is_contiguous()
    # the head's matrix is the embedding's, and both are the one stored by columns
    assert model.head.weight.t().is_contiguous()


def test_a_saved_copy_is_stored_by_rows(tmp_path):
    model = column_major(kf.build(kf.relative("gpt2", size="tiny"), seed=0))
    kf.save(model, tmp_path / "m")
    again = kf.load(tmp_path / "m")
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
