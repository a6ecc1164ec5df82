import math

import pytest
import torch

import kinfolk as kf


def test_gpt2_starts_residual_branches_smaller():
    m = kf.build(kf.relative("gpt2", size="tiny", d_model=256, n_heads=4, d_ff=512, n_layers=8))
    block = m.decoder.blocks[3]
    for linear in (block.parts[0].qkv, block.parts[1].widen):
        assert float(linear.weight.detach().std()) == pytest.approx(0.02, rel=0.03)
    for linear in (block.parts[0].out, block.parts[1].narrow):
        assert float(linear.weight.detach().std()) == pytest.approx(0.02 / math.sqrt(16), rel=0.03)
    assert all(float(p.detach().abs().sum()) == 0 for n, p in m.named_parameters() if n.endswith("bias"))


def test_xavier_treats_packed_maps_as_three():
    m = kf.build(kf.relative("vanilla", size="tiny", d_model=128, n_heads=4))
    bound = math.sqrt(6 / 256)
    packed = m.encoder.blocks[0].parts[0].qkv.weight.detach()
    assert float(packed.abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(m.embedding.table.weight.detach().std()) == pytest.approx(128**-0.5, rel=0.02)


def test_packed_xavier_starts_as_torch_nn_transformer_does():
    numbers = {"d_model": 128, "n_heads": 4, "d_ff": 256, "n_layers": 1}
    m = kf.build(kf.relative("vanilla", size="tiny", **numbers, **{"model.init": "packed-xavier"}), seed=1)
    torch.manual_seed(1)
    peer = torch.nn.Transformer(128, 4, 1, 1, 256, batch_first=True)
    (look, think), (_, across, _) = m.encoder.blocks[0].parts, m.decoder.blocks[0].parts
    theirs, over = peer.encoder.layers[0], peer.decoder.layers[0].multihead_attn
    pairs = [(look.qkv, theirs.self_attn.in_proj_weight), (look.out, theirs.self_attn.out_proj.weight)]
    pairs += [(across.q, over.in_proj_weight[:128]), (across.kv, over.in_proj_weight[128:])]
    pairs += [(across.out, over.out_proj.weight), (think.widen, theirs.linear1.weight)]
    for ours, want in pairs:
        assert float(ours.weight.detach().abs().max()) == pytest.approx(float(want.detach().abs().max()), rel=0.01)
        assert float(ours.weight.detach().std()) == pytest.approx(float(want.detach().std()), rel=0.03)


def test_the_scaled_dot_product_keeps_unit_variance():
    torch.manual_seed(0)
    q, k = torch.randn(2, 20000, 64)
    assert float(((q * k).sum(-1) / 8).var()) == pytest.approx(1.0, rel=0.05)
