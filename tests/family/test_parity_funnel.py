"""The Funnel-Transformer against Hugging Face's with copied weights.

Theirs drops the last token before each pooling unless told otherwise, hides a slot that holds any padding, scores
pairs by their segments too, and adds the first level to itself where there is no second. So here `truncate_seq` is off,
padding fills whole slots, segment vectors are zero, and there are at least two levels. Their scores pass through
float32.
"""

import pytest
import torch
from torch import nn

import kinfolk as kf
from kinfolk.core.batch import Batch

transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs kinfolk[bench]")

D, H, K, F, V = 24, 3, 8, 40, 37
NUMBERS = {"d_model": D, "n_layers": 5, "n_heads": H, "d_ff": F, "vocab_size": V, "max_len": 64}


def theirs(n_levels, **changes):
    config = transformers.FunnelConfig(
        vocab_size=V,
        block_sizes=[5 * (i + 1) // n_levels - 5 * i // n_levels for i in range(n_levels)],
        num_decoder_layers=2,
        d_model=D,
        n_head=H,
        d_head=K,
        d_inner=F,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
        **{"truncate_seq": False, **changes},
    )
    return transformers.FunnelModel(config).double().eval()


def copy_layer(block, layer):
    look, think = block.parts
    own = layer.attention
    d = H * K
    look.qkv.weight.data = torch.cat([own.q_head.weight, own.k_head.weight, own.v_head.weight]).data.clone()
    look.qkv.bias.data = torch.cat([torch.zeros(d), own.k_head.bias, own.v_head.bias]).data.clone()
    look.out.load_state_dict(own.post_proj.state_dict())
    look.position.distance.weight.data = own.r_kernel.data.flatten(1).T.clone()
    look.position.biases.weight.data = torch.stack([own.r_w_bias.flatten(), own.r_r_bias.flatten()]).data.clone()
    block.residuals[0].norm.load_state_dict(own.layer_norm.state_dict())
    block.residuals[1].norm.load_state_dict(layer.ffn.layer_norm.state_dict())
    up, down = (m for m in think.modules() if isinstance(m, nn.Linear))
    up.load_state_dict(layer.ffn.linear_1.state_dict())
    down.load_state_dict(layer.ffn.linear_2.state_dict())


def pair(n_levels=3, **changes):
    peer = theirs(n_levels, **changes)
    torch.manual_seed(0)
    for name, p in peer.named_parameters():
        gain = name.endswith("norm.weight")
        nn.init.normal_(p, mean=float(gain), std=0.0 if name.endswith("seg_embed") else 0.2 if gain else 0.5)
    ours = kf.build(kf.relative("funnel", size="tiny", n_levels=n_levels, **NUMBERS)).double().eval()
    for level, block in zip(ours.encoder.levels, peer.encoder.blocks, strict=True):
        for mine, layer in zip(level.blocks, block, strict=True):
            copy_layer(mine, layer)
    for mine, layer in zip(ours.encoder.top.blocks, peer.decoder.layers, strict=True):
        copy_layer(mine, layer)
    ours.embedding.table.load_state_dict(peer.embeddings.word_embeddings.state_dict())
    ours.embedding.norm.load_state_dict(peer.embeddings.layer_norm.state_dict())
    return ours, peer


def tokens(length):
    return torch.randint(V, (2, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("attention_type", ["relative_shift", "factorized"])
@pytest.mark.parametrize(("n_levels", "length"), [(2, 5), (2, 9), (3, 13), (3, 16), (3, 17)])
def test_funnel_is_hugging_faces(n_levels, length, attention_type):
    ours, peer = pair(n_levels, attention_type=attention_type)
    t = tokens(length)
    want = peer(t).last_hidden_state
    torch.testing.assert_close(ours(t).hidden, want, rtol=0, atol=5e-6)
    for layer in peer.encoder.blocks[-1]:
        layer.attention.r_kernel.data.zero_()
    # distances matter, in pooled levels too
    assert (peer(t).last_hidden_state - want).abs().max() > 0.01


def test_padding_that_fills_slots_is_padding_for_both():
    ours, peer = pair()
    # the first token, then three slots of four
    keep = torch.arange(21).expand(2, 21) < 13
    t = tokens(21)
    want = peer(t, attention_mask=keep.long()).last_hidden_state[:, :13]
    got = ours.run(Batch(index=torch.arange(2), tokens=t, keep=keep)).hidden[:, :13]
    torch.testing.assert_close(got, want, rtol=0, atol=5e-6)
    torch.testing.assert_close(got, ours(t[:, :13]).hidden, rtol=1e-9, atol=1e-10)


def test_what_differs_differs():
    """Truncation and segments are theirs alone."""
    ours, peer = pair()
    t = tokens(16)
    same = ours(t).hidden
    peer.config.truncate_seq = True
    assert (peer(t).last_hidden_state - same).abs().max() > 0.01
    ours, peer = pair()
    peer.encoder.blocks[0][0].attention.seg_embed.data.normal_()
    assert (peer(t).last_hidden_state - same).abs().max() > 0.01
