"""Packed documents as rows of their own, and back."""

import torch

from kinfolk.core.context import Context, Padding
from kinfolk.layers.mixers.packing import Packing

GROUP = torch.tensor([[4, 4, 4, 2, 2], [4, 4, 4, 4, 9]])
POSITION = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]])


def test_one_document_per_row_needs_no_packing():
    assert Packing.of(Context(), (2, 5), torch.device("cpu")) is None


def test_documents_become_rows_and_come_back():
    ctx = Context(group_BL=GROUP, pos_BL=POSITION)
    packing = Packing.of(ctx, (2, 5), torch.device("cpu"))
    x = torch.arange(1.0, 11.0).view(2, 5, 1)
    rows = packing.unpack(x)[..., 0]
    assert rows.tolist() == [[4, 5, 0, 0], [1, 2, 3, 0], [6, 7, 8, 9], [10, 0, 0, 0]]
    assert torch.equal(packing.pack(rows[..., None]), x)
    inside = packing.context(ctx)
    assert torch.equal(inside.padding.keep_BL, rows > 0)
    assert inside.padding.right
    assert inside.group_BL is None
    assert inside.pos_BL is None


def test_padding_has_no_row():
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[0, 3:] = False
    ctx = Context(group_BL=torch.zeros(2, 5).long(), padding=Padding(keep, right=True))
    packing = Packing.of(ctx, (2, 5), torch.device("cpu"))
    x = torch.arange(1.0, 11.0).view(2, 5, 1).requires_grad_()
    rows = packing.unpack(x)
    assert rows[..., 0].tolist() == [[1, 2, 3, 0, 0], [6, 7, 8, 9, 10]]
    rows.sum().backward()
    assert torch.equal(x.grad[..., 0] > 0, keep)
    assert packing.pack(rows).isfinite().all()
