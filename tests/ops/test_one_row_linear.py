"""One row times a matrix in pieces of columns is the product that it is for any other layout."""

import pytest
import torch
import torch.nn.functional as F

from kinfolk.ops import one_row_linear as module
from kinfolk.ops.naive.one_row_linear import one_row_linear as naive
from kinfolk.ops.one_row_linear import NARROWEST, WIDEST, WholeMatrix, by_columns, columns, one_row_linear, width

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


def test_what_is_stored_by_columns_is_one_bag_where_units_are_wide(monkeypatch):
    weight, bias = drawn(449, 29, dtype=torch.float32)
    x, found = torch.randn(1, 29), {}
    for wide in (True, False):
        monkeypatch.setattr(module, "wide_products", lambda wide=wide: wide)
        found[wide] = module.as_stored(by_columns(weight), None)
        torch.testing.assert_close(one_row_linear(x, found[wide]), F.linear(x, weight))
        assert torch.equal(found[wide].matrix, weight)
        # rows are not columns, and a bias would be a column more
        for other in (module.as_stored(weight, None), module.as_stored(by_columns(weight), bias)):
            assert isinstance(other, WholeMatrix)
    assert isinstance(found[False], WholeMatrix)
    stored = by_columns(weight)
    monkeypatch.setattr(module, "wide_products", lambda: True)
    assert module.as_stored(stored, None).pieces_GIW.data_ptr() == stored.data_ptr()


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


@pytest.mark.parametrize("bias", [False, True])
def test_the_matrix_can_be_read_back(bias):
    weight, offset = drawn(1152, 29, bias)
    found = columns(weight, offset)
    assert torch.equal(found.matrix, weight)
    assert found.bias is None if offset is None else torch.equal(found.bias, offset)


def test_groups_fit_the_registers_and_are_not_too_narrow():
    assert {n: width(n) for n in (384, 448, 449, 1152, 1536, 50257, 4096, 7, 96)} == {
        **{384: 384, 448: 448, 449: None, 1152: 384, 1536: 384, 50257: None, 4096: 256, 7: None, 96: 96}
    }
    assert all(w is None or (NARROWEST <= w <= WIDEST and n % w == 0) for n in range(1, 2000) for w in (width(n),))
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
