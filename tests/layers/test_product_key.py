import pytest
import torch

import kinfolk as kf
from kinfolk.core.context import Context, Taps
from kinfolk.core.errors import SpecError
from kinfolk.layers.feed_forwards.product_key import ProductKey
from kinfolk.layers.module import Dims
from kinfolk.models.cost import cost
from tests.exact import assert_exact

DIMS = Dims(d_model=12, vocab_size=40, max_len=32, dropout=0.0, n_sublayers=4)


def built(spec):
    torch.manual_seed(0)
    module = spec.build(DIMS).double()
    for p in module.parameters():
        torch.nn.init.normal_(p)
    assert sum(p.numel() for p in module.parameters()) == spec.cost(DIMS, None).params
    return module


def x():
    return torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_all_keys_and_one_head_are_a_dense_softmax_memory():
    module = built(ProductKey(n_keys=5, n_heads=1, n_best=25, d_key=8))
    q1, q2 = (norm(q) for norm, q in zip(module.norms, module.query(x()).chunk(2, -1), strict=True))
    scores = (q1 @ module.left[0].mT)[..., :, None] + (q2 @ module.right[0].mT)[..., None, :]
    assert_exact(module(x(), Context(), None)[0], scores.flatten(-2).softmax(-1) @ module.values_VD)


def test_heads_are_added_up():
    module = built(ProductKey(n_keys=4, n_heads=3, n_best=5, d_key=8))
    total = 0
    for h in range(3):
        one = built(ProductKey(n_keys=4, n_heads=1, n_best=5, d_key=8))
        one.load_state_dict(
            {
                "query.weight": module.query.weight.unflatten(0, (3, -1))[h],
                "query.bias": module.query.bias.unflatten(0, (3, -1))[h],
                "left": module.left[h : h + 1],
                "right": module.right[h : h + 1],
                "values_VD": module.values_VD,
                **{f"norms.{key}": value for key, value in module.norms.state_dict().items()},
            }
        )
        total = total + one(x(), Context(), None)[0]
    assert_exact(module(x(), Context(), None)[0], total)


def test_what_was_read_is_reported():
    module, taps = built(ProductKey(n_keys=6, n_heads=2, n_best=3, d_key=4)), Taps()
    module(x(), Context(taps=taps), None)
    assert taps.found["read"].shape == taps.found["places"].shape == (2, 5, 2, 3)
    assert taps.found["places"].max() < 36
    assert_exact(taps.found["read"].sum(-1), torch.ones(2, 5, 2, dtype=torch.float64))


def test_the_memory_stands_in_the_last_layer_but_one():
    for n_layers, place in ((1, 0), (2, 0), (12, 10)):
        blocks = kf.relative("product-key-memory", size="base", n_layers=n_layers).model.decoder.blocks
        assert [block.parts[1].kind == "product-key" for block in blocks] == [n == place for n in range(n_layers)]


def test_the_published_size():
    """Narang et al. 2021: 421 million with 512 keys a side in one layer of 24, from 223 without."""
    dims = Dims(d_model=768, vocab_size=32128, max_len=512, dropout=0.0, n_sublayers=36)
    plain = 2 * 768 * 3072 + 768 + 3072
    assert 222.9e6 - plain + ProductKey().cost(dims, None).params == pytest.approx(420.8e6, abs=0.2e6)


def test_keys_and_values_are_drawn_from_the_seed():
    model = kf.relative("product-key-memory", size="tiny", n_keys=32).model
    a, b, c = (kf.build(model, seed).decoder.blocks[0].parts[1] for seed in (1, 1, 2))
    assert torch.equal(a.values_VD, b.values_VD)
    assert not torch.equal(a.values_VD, c.values_VD)
    assert float(a.values_VD.detach().std()) == pytest.approx(128**-0.5, rel=0.02)
    assert float(a.left.detach().abs().max()) == pytest.approx(256**-0.5, rel=0.01)
    assert cost(model, 8).params == kf.build(model).n_params


def test_what_cannot_be_is_refused():
    with pytest.raises(SpecError, match="two halves"):
        ProductKey(d_key=7)
    with pytest.raises(SpecError, match="there are 4 values"):
        ProductKey(n_keys=2, n_best=5)
