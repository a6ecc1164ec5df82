"""One row times a matrix in pieces of columns is the product that it is for any other layout."""

import pytest
import torch
import torch.nn.functional as F

from kinfolk.ops import one_row_linear as module
from kinfolk.ops.naive.one_row_linear import one_row_linear as naive
from kinfolk.ops.one_row_linear import (
    WIDTHS,
    WholeMatrix,
    apart,
    as_stored,
    by_columns,
    columns,
    one_row_linear,
    table_by_columns,
    width,
)

SHAPES = [(96, 1), (96, 29), (448, 7), (1152, 11), (768, 17)]


def drawn(n_out, n_in, bias=True, dtype=torch.float64):
    draw = torch.Generator().manual_seed(n_out + n_in)
    weight = torch.randn(n_out, n_in, generator=draw, dtype=dtype)
    return weight, torch.randn(n_out, generator=draw, dtype=dtype) if bias else None


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n_out", "n_in"), SHAPES)
def test_it_is_the_product_by_its_definition(n_out, n_in, bias, rows):
    weight, offset = drawn(n_out, n_in, bias)
    x = torch.randn(rows, 1, n_in, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got, expected = one_row_linear(x, columns(weight, offset)), naive(x, weight, offset)
    assert got.shape == (rows, 1, n_out)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    single = one_row_linear(x.float(), columns(*(None if t is None else t.float() for t in (weight, offset))))
    torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n_out", "n_in"), [*SHAPES, (7, 29)])
@pytest.mark.parametrize("lie", [by_columns, torch.clone], ids=["columns", "rows"])
def test_a_whole_matrix_is_a_product_by_its_definition(n_out, n_in, bias, rows, lie):
    weight, offset = drawn(n_out, n_in, bias)
    # one row of a larger tensor is not contiguous
    x = torch.randn(rows, 1, 2 * n_in, dtype=torch.float64, generator=torch.Generator().manual_seed(1))[..., ::2]
    with torch.no_grad():
        got, expected = one_row_linear(x, WholeMatrix(lie(weight), offset)), naive(x, weight, offset)
    assert got.shape == (rows, 1, n_out)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_only_one_row_of_a_whole_matrix_is_a_product_of_a_vector(monkeypatch):
    called = []
    real = torch.addmv
    monkeypatch.setattr(module.torch, "addmv", lambda *args: called.append(1) or real(*args))
    weight, bias = drawn(96, 29, dtype=torch.float32)
    matrix = WholeMatrix(by_columns(weight), bias)
    for rows in (torch.randn(2, 29), torch.randn(3, 2, 29), torch.randn(0, 29)):
        torch.testing.assert_close(one_row_linear(rows, matrix), F.linear(rows, weight, bias))
    assert not called
    x = torch.randn(1, 29, requires_grad=True)
    one_row_linear(x, matrix).sum().backward()
    assert len(called) == 1
    torch.testing.assert_close(x.grad, weight.sum(0, keepdim=True))


@pytest.fixture
def units(request, monkeypatch):
    """Pretend AMD's processors with units of 512 bits, with AVX2, or another processor."""
    monkeypatch.setattr(module, "wide_products", lambda: request.param == "wide")
    monkeypatch.setattr(module, "keeps_columns_apart", lambda: request.param == "avx2")
    return request.param


@pytest.mark.parametrize("units", ["wide", "avx2", "other"], indirect=True)
@pytest.mark.parametrize("n_out", [7, 32, 64, 449])
def test_a_table_by_columns_is_one_bag_where_that_is_read_fast(units, n_out):
    weight, bias = drawn(n_out, 5, dtype=torch.float32)
    stored = table_by_columns(weight)
    assert torch.equal(stored, weight)
    found = as_stored(stored, None)
    for x in (torch.randn(1, 5), torch.randn(2, 3, 5), torch.randn(0, 5)):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                y = one_row_linear(x, found)
                torch.testing.assert_close(y, F.linear(x, weight))
    assert torch.equal(found.matrix, weight)
    assert found.matrix.data_ptr() == stored.data_ptr()
    assert isinstance(found, WholeMatrix) == (units == "other")
    # rows are not columns, a bias would be a column more, and behind the last column of a part there is no room
    for other in ((weight, None), (stored, bias), (by_columns(torch.randn(n_out, 5))[1:], None), (stored[1:], None)):
        assert isinstance(as_stored(*other), WholeMatrix)
        torch.testing.assert_close(as_stored(*other).matrix, other[0], rtol=0, atol=0)


def test_columns_lie_an_odd_number_of_lines_apart():
    assert [apart(n) for n in (1, 32, 33, 64, 8192, 50257)] == [32, 32, 96, 96, 8224, 50272]
    assert all(n <= apart(n) < n + 64 and apart(n) // 32 % 2 == 1 and apart(n) % 32 == 0 for n in range(1, 300))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_divide_the_groups_and_then_the_inputs(threads):
    before, (weight, bias), x = torch.get_num_threads(), drawn(192, 29, dtype=torch.float32), torch.randn(1, 29)
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(one_row_linear(x, columns(weight, bias)), F.linear(x, weight, bias))
        # more threads than inputs
        few = columns(weight[:, :2].contiguous(), None)
        torch.testing.assert_close(one_row_linear(x[:, :2], few), F.linear(x[:, :2], weight[:, :2]))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n_out", [192, 449, 1152])
def test_one_matrix_serves_threads_that_have_more_or_fewer_of_their_own(n_out, monkeypatch):
    monkeypatch.setattr(module, "wide_products", lambda: True)
    weight, x = drawn(n_out, 29, dtype=torch.float32)[0], torch.randn(1, 29)
    matrix = columns(weight, None) or as_stored(table_by_columns(weight), None)
    bags, real = [], torch.embedding_bag
    monkeypatch.setattr(module.torch, "embedding_bag", lambda *args: bags.append(len(args[2])) or real(*args))
    available = (1, 30, 2, 1)
    for threads in available:
        monkeypatch.setattr(module.torch, "get_num_threads", lambda threads=threads: threads)
        torch.testing.assert_close(one_row_linear(x, matrix), F.linear(x, weight))
    assert bags == [matrix.n_groups * max(1, threads // matrix.n_groups) for threads in available]


@pytest.mark.parametrize("bias", [False, True])
def test_the_matrix_can_be_read_back(bias):
    weight, offset = drawn(1152, 29, bias)
    found = columns(weight, offset)
    assert torch.equal(found.matrix, weight)
    assert found.bias is None if offset is None else torch.equal(found.bias, offset)


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ("AVX512", {384: 384, 448: 448, 449: None, 1152: 384, 1536: 384, 50257: None, 4096: 256, 7: None, 96: 96}),
        ("AVX2", {384: 96, 448: 112, 449: None, 1152: 96, 1536: 96, 50257: None, 4096: 64, 7: None, 96: 96, 48: 48}),
    ],
)
def test_groups_fit_the_registers_and_are_not_too_narrow(instructions, expected, monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    assert {n: width(n) for n in expected} == expected
    least, most = WIDTHS[instructions]
    assert all(w is None or (least <= w <= most and n % w == 0) for n in range(1, 2000) for w in (width(n),))
    assert columns(*drawn(449, 3)) is None


def test_only_one_row_is_a_bag(monkeypatch):
    bags = []
    real = torch.embedding_bag
    monkeypatch.setattr(module.torch, "embedding_bag", lambda *args: bags.append(1) or real(*args))
    weight, bias = drawn(96, 29, dtype=torch.float32)
    matrix = columns(weight, bias)
    with torch.inference_mode():
        one_row_linear(torch.randn(1, 29), matrix)
    assert len(bags) == 1
    for rows in (torch.randn(2, 29), torch.randn(3, 2, 29), torch.randn(1, 58)[:, ::2], torch.randn(0, 29)):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                torch.testing.assert_close(one_row_linear(rows, matrix), F.linear(rows, weight, bias))
    assert len(bags) == 1
    # what was made inside inference mode serves outside
    x = torch.randn(1, 29, requires_grad=True)
    one_row_linear(x, matrix).sum().backward()
    torch.testing.assert_close(x.grad, weight.sum(0, keepdim=True))
