"""Following arrows: every answer is walked again, hop by hop, from the text alone."""

from typing import Any

import numpy as np
import pytest

from kinfolk.core.batch import IGNORE
from kinfolk.core.errors import DataError
from kinfolk.data import Batches, open_data

PLACES, QUERIES = 4, 5


def walked(symbols: list[int]) -> list[int]:
    arrows = {s // PLACES: s % PLACES for s in symbols[:PLACES]}
    answers = []
    for query in symbols[PLACES:]:
        hops, at = divmod(query - PLACES * PLACES, PLACES)
        for _ in range(hops):
            at = arrows[at]
        answers.append(at)
    return answers


def test_answers_are_where_the_arrows_lead() -> None:
    data = open_data(f"chase:places={PLACES},queries={QUERIES},fewest=1,hops=3")
    seen, hops = [], set()
    for name in ("train", "valid"):
        split: Any = data.split(name)
        texts = []
        for ids, tags in split.examples(np.arange(300)):
            text = [data.tokenizer.decode([i]) for i in ids.tolist()]
            symbols = [ord(sign) - ord(data.tokenizer.decode([7])) for sign in text]
            assert sorted(s // PLACES for s in symbols[:PLACES]) == list(range(PLACES))
            assert sorted(s % PLACES for s in symbols[:PLACES]) == list(range(PLACES))
            assert tags.tolist() == [IGNORE] * PLACES + walked(symbols)
            hops |= {(s - PLACES * PLACES) // PLACES for s in symbols[PLACES:]}
            texts.append("".join(text))
        seen.append(set(texts))
    assert hops == {1, 2, 3}
    assert seen[0].isdisjoint(seen[1])


def test_batches_ask_at_queries_only() -> None:
    batch = Batches(open_data("chase:places=3,queries=2").split("train"), batch_size=4, length=8).at(0)
    assert batch.targets is not None
    assert (batch.targets[:, :3] == IGNORE).all()
    assert (batch.targets[:, 3:5] != IGNORE).all()


@pytest.mark.parametrize("name", ["chase:places=1", "chase:fewest=4,hops=3", "chase:queries=0"])
def test_impossible_numbers_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="must be from"):
        open_data(name)
