"""MQAR and MAD: every target is found again from the symbols alone, by loops written from the papers' definitions."""

import itertools
from typing import Any

import numpy as np
import pytest

from kinfolk.core.batch import IGNORE
from kinfolk.core.errors import DataError
from kinfolk.data import Batches, open_data
from kinfolk.data.tokenizers.tokenizer import N_SPECIALS

N = 40


def rows(name: str, part: str) -> list[tuple[list[int], list[int]]]:
    split: Any = open_data(name).split(part)
    return [((ids - N_SPECIALS).tolist(), tags.tolist()) for ids, tags in split.examples(np.arange(N))]


@pytest.mark.parametrize("noise", [0, 1])
def test_mqar_asks_for_the_value_of_every_key_once(noise: int) -> None:
    gaps = []
    for symbols, tags in rows(f"mqar:length=64,pairs=6,vocab=64,noise={noise}", "train"):
        assert len(symbols) == 64
        values = dict(zip(symbols[:12:2], symbols[1:12:2], strict=True))
        assert len(values) == len(set(values.values())) == 6
        assert all(0 < key < 32 <= value < 64 for key, value in values.items())
        asked = [i for i, tag in enumerate(tags) if tag != IGNORE]
        assert sorted(symbols[i] for i in asked) == sorted(values)
        assert all(i >= 12 and i % 2 == 0 and tags[i] == values[symbols[i]] - 32 for i in asked)
        others = {symbols[i] for i in range(12, 64) if i not in asked}
        assert (others == {0}) != bool(noise)
        gaps += [(i - 12) // 2 for i in asked]
    # places follow a power law: the mean of six successive draws from i^-0.99 over 26 places, far from the middle
    assert np.mean(gaps) < 9.0


@pytest.mark.parametrize("name", ["in-context-recall:length=24,vocab=12", "noisy-recall:length=24,vocab=20"])
def test_recall_asks_for_values_of_keys_that_were_there(name: str) -> None:
    known = 12 if name.startswith("in") else 4
    for symbols, tags in rows(name, "valid"):
        assert len(symbols) == len(tags) == 23
        seen: dict[int, int] = {}
        for i in range(0, 23, 2):
            key = symbols[i]
            assert i + 1 >= 23 or tags[i + 1] == IGNORE
            if key >= known:
                assert tags[i] == IGNORE
                continue
            assert key < known // 2
            assert tags[i] == seen.get(key, IGNORE)
            if i + 1 < 23:
                assert seen.setdefault(key, symbols[i + 1]) == symbols[i + 1]
        assert tags[-1] != IGNORE
    for symbols, tags in rows(name, "train"):
        assert tags[:-1] == symbols[1:]


def test_noise_is_as_frequent_as_asked() -> None:
    many = [row for part in ("train", "valid") for row, _ in rows("noisy-recall:noise=40", part)]
    share = np.mean([symbol >= 16 for row in many for symbol in row])
    assert share == pytest.approx(0.4, abs=0.04)


def test_fuzzy_recall() -> None:
    name = "fuzzy-recall:length=60,vocab=12,motif=2"
    for part, lengths in (("train", {1, 2}), ("valid", {2})):
        sizes = set()
        for symbols, tags in rows(name, part):
            assert len(symbols) == len(tags) == 60
            whole = [*symbols, tags[-1]]
            start = next(i for i, s in enumerate(whole) if s != 11)
            assert 11 not in whole[start:]
            kinds = [s >= 5 for s in whole[start:]]
            cuts = [0, *(i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1]), len(kinds)]
            runs = [tuple(whole[start + a : start + b]) for a, b in itertools.pairwise(cuts)]
            seen: dict[tuple[int, ...], tuple[int, ...]] = {}
            expected = [IGNORE] * start
            for key, value in zip(runs[::2], runs[1::2], strict=True):
                assert len(set(key)) == len(key)
                sizes.add(len(key))
                expected += [IGNORE] * len(key) + (list(value) if key in seen else [IGNORE] * len(value))
                assert seen.setdefault(key, value) == value
            assert expected[-1] == tags[-1] != IGNORE
            assert tags == (whole if part == "train" else expected)[1:]
        assert sizes == lengths


def test_selective_copying_and_compression() -> None:
    for symbols, tags in rows("selective-copying:length=40,copied=5,vocab=8", "valid"):
        mark = symbols.index(7)
        assert mark == 34
        assert symbols[mark + 1 :] == [6] * 5
        assert tags == [IGNORE] * 35 + [s for s in symbols[:mark] if s < 6]
    data = open_data("compression:length=9,vocab=8")
    assert data.task == "reconstruct"
    for symbols, tags in rows("compression:length=9,vocab=8", "train"):
        assert symbols == tags
        assert symbols.index(7) == 8


def test_memorisation_asks_for_one_map_in_both_parts() -> None:
    found: dict[int, set[int]] = {}
    for part in ("train", "valid"):
        for symbols, tags in rows("memorisation:vocab=20,length=12", part):
            assert symbols[1::2] == [19] * 6
            assert tags[::2] == [IGNORE] * 6
            for key, value in zip(symbols[::2], tags[1::2], strict=True):
                found.setdefault(key, set()).add(value)
    assert sorted(found) == list(range(9))
    assert all(len(values) == 1 for values in found.values())
    assert {min(values) for values in found.values()} <= set(range(9, 19))


@pytest.mark.parametrize("name", ["mqar", "in-context-recall", "noisy-recall", "fuzzy-recall", "selective-copying"])
def test_parts_share_no_sequence_and_seeds_differ(name: str) -> None:
    train, valid = ({tuple(symbols) for symbols, _ in rows(name, part)} for part in ("train", "valid"))
    assert train.isdisjoint(valid)
    batch = Batches(open_data(name).split("valid"), batch_size=2, length=300, shuffle=False).at(0)
    assert batch.targets is not None
    assert (batch.targets != IGNORE).any(1).all()
    other: Any = open_data(name, seed=1).split("train")
    assert tuple((other.examples(np.arange(1))[0][0] - N_SPECIALS).tolist()) not in train


@pytest.mark.parametrize(
    "name",
    ["mqar:pairs=20,length=64", "fuzzy-recall:motif=9", "selective-copying:copied=200", "noisy-recall:noise=100"],
)
def test_impossible_numbers_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="must be from"):
        open_data(name)
