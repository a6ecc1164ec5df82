"""Skips over depth: the embedding for every layer, and the values of the first layer, by hand."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context
from kinfolk.core.errors import SpecError
from kinfolk.core.paths import set_path
from kinfolk.models.depth.skips import HyperStreams

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


@pytest.mark.parametrize("form", ["static", "dynamic"])
def test_hyper_connections_are_their_equations(form):
    recipe = kf.relative("hyper-connections", size="base", **TOY)
    for layer in range(3):
        recipe = set_path(recipe, f"model.decoder.blocks[{layer}].residual.form", form)
    model = kf.build(recipe).double().eval()
    torch.manual_seed(0)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    tokens = torch.arange(7)[None]
    rows = []
    states = model.embedding(tokens, Context())[0]
    streams = [[x.clone() for _ in range(4)] for x in states]
    for block in model.decoder.blocks:
        for part, join in zip(block.parts, block.residuals, strict=True):
            weights = []
            for position in streams:
                w = join.weights_nm
                if form == "dynamic":
                    scales = torch.cat([join.scales_2[:1].expand(5), join.scales_2[1:]])
                    w = w + scales * torch.stack(
                        [torch.tanh(join.maps(join.own_norm(x[None, None])[0, 0])) for x in position]
                    )
                weights.append(w)
            mixed = [sum(w[i, 0] * x[i] for i in range(4)) for w, x in zip(weights, streams, strict=True)]
            out = part(join.norm(torch.stack(mixed)[None]), Context(), None)[0][0]
            streams = [
                [sum(w[i, 1 + j] * x[i] for i in range(4)) + w[j, 5] * y for j in range(4)]
                for w, x, y in zip(weights, streams, out, strict=True)
            ]
    rows = torch.stack([sum(position) for position in streams])
    torch.testing.assert_close(model(tokens).hidden[0], model.decoder.norm(rows[None])[0], rtol=1e-10, atol=1e-11)


def test_hyper_connections_begin_as_a_pre_norm_stack():
    """All streams are the same then, and a norm does not see how many of them are summed up."""
    tokens = torch.arange(9)[None]
    names = "hyper-connections", "llama"
    first, plain = (kf.build(kf.relative(name, size="base", **TOY), seed=3).double().eval() for name in names)
    with torch.no_grad():
        # so large that what norms add to a mean square is of no account
        plain.embedding.weight.mul_(1e4)
    first.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(first(tokens).logits, plain(tokens).logits, rtol=1e-3, atol=1e-4)
    with pytest.raises(SpecError, match="hyper-streams: needs residuals 'hyper-connections' with n = 3"):
        kf.relative("llama", **TOY).model.decoder.wrap(HyperStreams(n=3))
