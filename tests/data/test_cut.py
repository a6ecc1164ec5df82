"""What is left of a text that is longer than a row."""

import numpy as np
import pytest

from kinfolk.core.errors import DataError
from kinfolk.data import Batches
from kinfolk.data.batches.batches import shortened
from kinfolk.data.generated.text import ByteTextSplit, Labelled


@pytest.mark.parametrize(("cut", "left"), [("head", [0, 1, 2, 3]), ("tail", [6, 7, 8, 9]), ("both", [0, 7, 8, 9])])
def test_numbered_tokens(cut, left):
    assert shortened(np.arange(10), 4, cut).tolist() == left
    assert shortened(np.arange(3), 4, cut).tolist() == [0, 1, 2]
    assert shortened(np.arange(4), 4, cut).tolist() == [0, 1, 2, 3]


def test_batches_cut_as_they_are_told():
    split = ByteTextSplit(
        "train", [Labelled("a", (b"abcdefghij",), ("",)), Labelled("b", (b"xyz",), ("",))], ("a", "b"), 100
    )
    at = split.tokenizer.encode
    for cut, text in (("head", "abcd"), ("tail", "hij"), ("both", "aij")):
        batch = Batches(split, batch_size=2, length=4, shuffle=False, cut=cut).at(0)
        end = [] if cut == "head" else [split.tokenizer.eos]
        assert batch.tokens[0].tolist() == [*at(text), *end]
        assert batch.tokens[1].tolist() == [*at("xyz"), split.tokenizer.eos]
    with pytest.raises(DataError, match="cut: unknown 'middle'"):
        Batches(split, batch_size=2, length=4, cut="middle")
