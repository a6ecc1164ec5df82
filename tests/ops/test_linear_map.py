"""Linear layer by either library: the same numbers and gradients, and the path that large maps take."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from kinfolk.core import machine
from kinfolk.ops import linear_map as fast
from kinfolk.ops.naive import linear_map as slow

wide = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"),
    reason="oneDNN with AVX-512 is not here",
)


def leaves(bias=True, rows=(2, 3), d_in=5, d_out=4, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    shapes = [(*rows, d_in), (d_out, d_in), (d_out,)][: 3 if bias else 2]
    return [torch.randn(s, generator=g, dtype=dtype, requires_grad=True) for s in shapes]


def run(op, inputs):
    out = op(*inputs)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return [out, *torch.autograd.grad((out * weight).sum(), inputs)]


@pytest.mark.parametrize("bias", [True, False])
def test_equals_naive(bias):
    inputs = leaves(bias)
    for ours, theirs in zip(run(fast.linear_map, inputs), run(slow.linear_map, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@wide
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [((2, 3), 5, 4), ((7,), 3, 9), ((2, 40, 1), 33, 17)])
def test_the_other_library_equals_naive_in_single_precision(monkeypatch, bias, shape):
    monkeypatch.setattr(fast, "LEAST", 0)
    monkeypatch.setattr(fast, "wide_products", lambda: True)
    inputs = leaves(bias, *shape, dtype=torch.float32)
    calls = []
    apply = fast._LinearMap.apply
    monkeypatch.setattr(fast._LinearMap, "apply", lambda *given: calls.append(given) or apply(*given))
    ours, theirs = run(fast.linear_map, inputs), run(slow.linear_map, inputs)
    assert calls
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@wide
def test_gradients_of_gradients_exist(monkeypatch):
    monkeypatch.setattr(fast, "LEAST", 0)
    monkeypatch.setattr(fast, "wide_products", lambda: True)
    found = []
    for op in (fast.linear_map, F.linear):
        x, w, b = leaves(dtype=torch.float32)
        (dx,) = torch.autograd.grad(op(x, w, b).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), (x, w)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@wide
def test_its_operations_are_counted(monkeypatch):
    monkeypatch.setattr(fast, "LEAST", 0)
    counts = []
    for wanted in (True, False):
        monkeypatch.setattr(fast, "wide_products", lambda wanted=wanted: wanted)
        inputs = leaves(dtype=torch.float32)
        with FlopCounterMode(display=False) as counter:
            run(fast.linear_map, inputs)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@wide
def test_two_matrices_are_multiplied():
    g = torch.Generator().manual_seed(2)
    a, b = torch.randn(6, 9, generator=g), torch.randn(9, 5, generator=g)
    for left in (a, a.mT.contiguous().mT):
        for right in (b, b.mT.contiguous().mT):
            torch.testing.assert_close(fast.product(left, right), a @ b)


@wide
@pytest.mark.parametrize("shape", [(40, 33, 17), (40, 17, 33), (1, 5, 5)])
def test_the_gradient_of_a_matrix_is_the_product_over_rows(monkeypatch, shape):
    n, d_out, d_in = shape
    g = torch.Generator().manual_seed(3)
    dy, x = torch.randn(n, d_out, generator=g), torch.randn(n, d_in, generator=g)
    expected = dy.double().mT @ x.double()
    for wanted in (True, False):
        monkeypatch.setattr(fast, "LEAST", 0)
        monkeypatch.setattr(fast, "wide_products", lambda wanted=wanted: wanted)
        summed = torch.ones(d_out, d_in)
        fast.add_weight_gradient(dy, x, summed)
        for found in (fast.weight_gradient(dy, x), summed - 1.0):
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@wide
@pytest.mark.parametrize("bias", [True, False])
def test_what_is_written_where_it_belongs_is_the_map(monkeypatch, bias):
    monkeypatch.setattr(fast, "LEAST", 0)
    x, w, *b = (leaf.detach() for leaf in leaves(bias, rows=(7,), dtype=torch.float32))
    for wanted in (True, False):
        monkeypatch.setattr(fast, "wide_products", lambda wanted=wanted: wanted)
        out = torch.full((9, 4), torch.nan)
        fast.linear_into(x, w, b[0] if b else None, out[1:8])
        torch.testing.assert_close(out[1:8], F.linear(x, w, *b))
        assert out[[0, 8]].isnan().all()


@wide
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_a_training_step_is_the_same_by_either_library(monkeypatch, name):
    import kinfolk as kf

    tokens, found = torch.randint(5, 40, (2, 9), generator=torch.Generator().manual_seed(4)), []
    monkeypatch.setattr(fast, "LEAST", 0)
    for wanted in (True, False):
        monkeypatch.setattr(fast, "wide_products", lambda wanted=wanted: wanted)
        model = kf.build(kf.relative(name, size="tiny", vocab_size=41), seed=0)
        states = torch.randn(2, 9, model.spec.d_model, generator=torch.Generator().manual_seed(5))
        states.requires_grad_()
        loss = model(tokens).logits.square().mean() + model.head.loss(states, tokens)
        loss.backward()
        found.append([loss.detach(), states.grad, *(p.grad for p in model.parameters() if p.grad is not None)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "wide"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2", True),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 97", False),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 26\nmodel\t\t: 2", False),
        ("", False),
    ],
)
def test_the_processor_is_asked_for_its_family(monkeypatch, tmp_path, text, wide):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    other = "processor: 1\ncpu family\t: 26\nAuthenticAMD"
    cpu = tmp_path / "cpuinfo"
    cpu.write_text(f"{text}\n\n{other}")
    monkeypatch.setattr(machine, "_CPU", cpu)
    fast.wide_products.cache_clear()
    try:
        here = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
        assert fast.wide_products() == (wide and here)
    finally:
        fast.wide_products.cache_clear()
