"""Suffixes are contracts while checking is on, and cost nothing while it is off."""

import pytest
import torch
from torch import Tensor

from kinfolk.core.errors import ShapeError
from kinfolk.core.shapes import LEGEND, shaped


@shaped(out="BLD")
def widen(x_BLD: Tensor, y_BL: Tensor | None = None, times: int = 1) -> Tensor:
    return x_BLD.repeat(1, 1, times)


def test_agreeing_shapes_pass_and_none_is_passed_over():
    x_BLD = torch.ones(2, 3, 4)
    assert widen(x_BLD, torch.ones(2, 3)).shape == (2, 3, 4)
    assert widen(x_BLD, None).shape == (2, 3, 4)


def test_a_size_that_disagrees_is_named():
    with pytest.raises(ShapeError, match=r"^widen: y_BL has L=5, but L=3 elsewhere$"):
        widen(torch.ones(2, 3, 4), torch.ones(2, 5))


def test_a_wrong_number_of_axes_is_named():
    with pytest.raises(ShapeError, match=r"^widen: x_BLD should have axes BLD, got shape \(2, 3\)$"):
        widen(torch.ones(2, 3))


def test_the_result_keeps_the_contract_too():
    with pytest.raises(ShapeError, match=r"^widen: result has D=8, but D=4 elsewhere$"):
        widen(torch.ones(2, 3, 4), times=2)


def test_one_is_a_size_and_lower_case_letters_are_tiles():
    @shaped(out=("Bn", ""))
    def tile(x_Bnb: Tensor, bias_1n: Tensor) -> tuple[Tensor, str]:
        return x_Bnb.sum(-1) + bias_1n, "anything"

    assert tile(torch.ones(2, 3, 4), torch.ones(1, 3))[0].shape == (2, 3)
    with pytest.raises(ShapeError, match=r"bias_1n has an axis of size 2 where 1 is promised"):
        tile(torch.ones(2, 3, 4), torch.ones(2, 3))


def test_a_method_is_named_with_its_class():
    class Layer:
        @shaped()
        def forward(self, x_BD: Tensor, y_BD: Tensor) -> None: ...

    with pytest.raises(ShapeError, match=r"^Layer\.forward: y_BD has D=4, but D=3"):
        Layer().forward(torch.ones(2, 3), torch.ones(2, 4))


def test_a_letter_outside_the_legend_is_refused():
    with pytest.raises(ShapeError, match=r"axis letter 'Q' is not in the legend \(known: B, L, M"):

        @shaped()
        def odd(x_BQ: Tensor) -> None: ...

    assert "Q" not in LEGEND


def test_without_the_variable_the_function_is_untouched(monkeypatch):
    monkeypatch.delenv("KINFOLK_CHECK_SHAPES")

    def plain(x_BD: Tensor) -> Tensor:
        return x_BD

    assert shaped(out="BD")(plain) is plain
