"""A reserve in huge pages gives tensors that are like any others, and ordinary ones where it has none to give."""

import gc
import mmap
import sys
import weakref

import pytest
import torch

from kinfolk.core import huge_pages
from kinfolk.core.huge_pages import PAGE, HugePages, room

LINUX = hasattr(mmap, "MADV_HUGEPAGE")


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_copies_are_contiguous_and_their_own(dtype):
    matrices = [drawn(3, 5, dtype=dtype), drawn(7, 4, dtype=dtype).mT, drawn(2, 3, 4, dtype=dtype)[:, 1]]
    pages = HugePages(sum(room(m.nbytes) for m in matrices))
    copies = [pages.copy(m) for m in matrices]
    for matrix, copy in zip(matrices, copies, strict=True):
        assert torch.equal(copy, matrix)
        assert copy.dtype == dtype
        assert copy.is_contiguous()
        copy.zero_()
        assert matrix.count_nonzero()
    # none was written over by the zeros of another: a copy of a copy is still whole
    again = [HugePages(1 << 16).copy(m) for m in matrices]
    assert all(torch.equal(a, m) for a, m in zip(again, matrices, strict=True))


def test_tensors_do_not_overlap():
    pages = HugePages(10 * room(4 * 100))
    copies = [pages.copy(torch.full((100,), float(i))) for i in range(10)]
    assert all(torch.equal(c, torch.full((100,), float(i))) for i, c in enumerate(copies))


@pytest.mark.skipif(not LINUX, reason="the system has no huge pages to ask for")
def test_a_reserve_begins_at_a_page_and_ends_where_it_was_said_to():
    pages = HugePages(2 * room(4 * 100))
    first, second, third, empty = (pages.copy(torch.ones(n)) for n in (100, 100, 100, 0))
    assert first.data_ptr() % PAGE == 0
    assert second.data_ptr() - first.data_ptr() == room(400)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    # one more is an ordinary tensor
    assert third.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
    assert torch.equal(third, first)
    assert empty.shape == (0,)


@pytest.mark.skipif(not LINUX, reason="the system has no huge pages to ask for")
def test_a_reserve_lives_as_long_as_its_last_tensor(monkeypatch):
    areas, real = [], huge_pages.mmap.mmap

    class Area(real):
        pass

    def made(*args, **kwargs):
        area = Area(*args, **kwargs)
        areas.append(weakref.ref(area))
        return area

    monkeypatch.setattr(huge_pages.mmap, "mmap", made)
    pages = HugePages(2 * room(400))
    kept, dropped = pages.copy(torch.ones(100)), pages.copy(torch.ones(100))
    del pages, dropped
    gc.collect()
    assert areas[0]() is not None
    assert torch.equal(kept, torch.ones(100))
    del kept
    gc.collect()
    assert areas[0]() is None


@pytest.mark.parametrize("missing", ["advice", "memory", "kernel"])
def test_without_huge_pages_a_copy_is_an_ordinary_tensor(missing, monkeypatch):
    def refused(*args, **kwargs):
        raise OSError("no")

    if missing == "advice":
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    elif missing == "memory":
        monkeypatch.setattr(huge_pages.mmap, "mmap", refused)
    else:
        kind = type("Area", (mmap.mmap,), {"madvise": refused})
        monkeypatch.setattr(huge_pages.mmap, "mmap", kind)
    matrix = drawn(3, 5).mT
    copy = HugePages(room(60)).copy(matrix)
    assert torch.equal(copy, matrix)
    assert copy.is_contiguous()
    assert copy.data_ptr() != matrix.data_ptr()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what Linux says of this process")
def test_what_is_not_written_takes_no_memory():
    from kinfolk.core.memory import resident

    before = resident()
    pages = HugePages(1 << 30)
    pages.copy(torch.ones(100))
    assert resident() - before < 64 << 20
