"""Skips over depth: the embedding for every layer, and the values of the first layer, by hand."""

import torch

import kinfolk as kf
from kinfolk.core.context import Context

TOY = {"d_model": 16, "n_layers": 3, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 16}


def toy(name):
    model = kf.build(kf.relative(name, size="base", **TOY)).double().eval()
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model


def test_every_block_reads_the_embedding():
    model, tokens = toy("x0-skip"), torch.arange(9)[None]
    first = x = model.embedding(tokens, Context())
    for block, (stream, embedding) in zip(model.decoder.blocks, model.decoder.embedding_skip.shares_n2, strict=True):
        x = block(stream * x + embedding * first, Context(), None)
    torch.testing.assert_close(model(tokens).hidden, model.decoder.norm(x), rtol=1e-12, atol=1e-12)


def test_values_of_the_first_layer_are_mixed_in():
    model, tokens = toy("value-residual"), torch.arange(9)[None]
    x, values = model.embedding(tokens, Context()), None
    for layer, block in enumerate(model.decoder.blocks):
        part, (attend, think) = block.parts[0], block.residuals
        q, k, v = part.heads_of(part.qkv(attend.norm(x)), Context())
        values = v if layer == 0 else values
        if layer:
            first, own = part.extras[0].shares_2
            v = first * values + own * v
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + part.out(y.transpose(1, 2).flatten(2))
        x = x + block.parts[1](think.norm(x), Context(), None)[0]
    torch.testing.assert_close(model(tokens).hidden, model.decoder.norm(x), rtol=1e-12, atol=1e-12)


def test_both_begin_as_described():
    tokens = torch.arange(9)[None]
    skip, plain = (kf.build(kf.relative(name, size="base", **TOY), seed=3).eval() for name in ("x0-skip", "llama"))
    torch.testing.assert_close(skip(tokens).logits, plain(tokens).logits)
    shares = [p for name, p in kf.build(kf.relative("value-residual", **TOY)).named_parameters() if "shares" in name]
    assert [share.tolist() for share in shares] == [[0.5, 0.5]] * 2
