"""Draws depend on (seed, purpose, example) alone; a batch is a bundle of tensors."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.device import seed_draws
from kinfolk.core.rng import Rng, derive


@given(st.integers(0, 2**64), st.integers(0, 2**64), st.text(max_size=5), st.text(max_size=5))
def test_seeds_differ_with_anything_they_are_derived_from(a, b, one, two):
    assert 0 <= derive(a, one) < 2**63
    assert (derive(a, one) == derive(b, one)) == (a == b)
    assert (derive(a, one) == derive(a, two)) == (one == two)


def test_a_derived_seed_never_changes_between_versions():
    assert derive(0, "dropout", 3, 1) == 2709480209204253786


def test_an_example_draws_the_same_whatever_was_drawn_before():
    rng = Rng(7)
    first = rng.example(3, "mask").random(4)
    rng.example(2, "mask").random(100)
    assert (rng.example(3, "mask").random(4) == first).all()
    assert (rng.example(3, "crop").random(4) != first).all()
    assert (Rng(8).example(3, "mask").random(4) != first).all()


def test_rows_map_and_replace_leave_what_is_absent_absent():
    batch = Batch(index=torch.arange(4), tokens=torch.arange(12).view(4, 3))
    assert len(batch) == 4
    part = batch.rows(slice(1, 3))
    assert part.index.tolist() == [1, 2]
    assert part.tokens.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert part.keep is None
    assert batch.map(lambda x: x + 1).index.tolist() == [1, 2, 3, 4]
    assert batch.replace(targets=torch.full((4, 3), IGNORE)).targets.eq(-100).all()
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.tokens = batch.index


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1])
def test_draws_on_the_cpu_are_those_of_torchs_own_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(seed)
    wanted = torch.rand(3), torch.nn.functional.dropout(torch.ones(50))
    # absent accelerators are not seeded: torch formats the stack of the caller for each of them
    monkeypatch.setattr(torch, "manual_seed", None)
    seed_draws(seed, torch.device("cpu"))
    found = torch.rand(3), torch.nn.functional.dropout(torch.ones(50))
    assert all(map(torch.equal, wanted, found))
