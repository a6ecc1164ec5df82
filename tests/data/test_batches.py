"""A batch is a pure function of (seed, step); an epoch holds everything once; padding is exact."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.core.annotations import Continuation
from kinfolk.core.batch import Batch
from kinfolk.core.errors import DataError
from kinfolk.data import Batches, Data, Preparation, open_data, prepare
from kinfolk.data.preparing.manifest import open_prepared
from kinfolk.data.splits.split import Split, TextSplit


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """40 documents of different lengths, in which every position can be told from every other."""
    folder = tmp_path_factory.mktemp("text")
    rows = [" ".join(f"{i}.{j}" for j in range(1 + i * 7 % 23)) for i in range(40)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    prepare([folder / "a.jsonl"], folder / "out", Preparation(valid=0.2))
    return open_prepared(folder / "out")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Pairs of very different lengths."""
    folder = tmp_path_factory.mktemp("pairs")
    rng = np.random.default_rng(0)
    rows = [f"{'s' * rng.integers(1, 60)}{i}\t{'t' * rng.integers(1, 60)}{i}" for i in range(1200)]
    (folder / "a.tsv").write_text("\n".join(rows) + "\n")
    prepare([folder / "a.tsv"], folder / "out", Preparation(pairs=True, valid=0.1))
    return open_prepared(folder / "out")


Make = Callable[..., Batches]


@pytest.fixture(params=["text", "contiguous text", "packed text", "pairs", "budget", "generated"])
def make(request: pytest.FixtureRequest, text: Data, pairs: Data) -> Make:
    """Return a maker of batches of one sort."""
    split, options = {
        "text": (text.split("train"), {"batch_size": 4, "length": 16}),
        "contiguous text": (text.split("train"), {"batch_size": 4, "length": 16, "order": "contiguous"}),
        "packed text": (text.split("train"), {"batch_size": 4, "length": 16, "packed": True}),
        "pairs": (pairs.split("train"), {"batch_size": 8, "length": 48}),
        "budget": (pairs.split("train"), {"budget": 500}),
        "generated": (open_data("sort:length=9,examples=300").split("train"), {"batch_size": 8}),
    }[request.param]
    return lambda **more: Batches(split, **options | more)  # type: ignore[arg-type]


def same(one: Batch, two: Batch) -> bool:
    a, b = one.tensors, two.tensors
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# purity


def test_a_batch_depends_on_seed_and_step_alone(make: Make) -> None:
    forwards = make(seed=3)
    seen = [forwards.at(step) for step in range(30)]
    backwards = make(seed=3)
    assert all(same(backwards.at(step), seen[step]) for step in reversed(range(30)))
    assert not same(make(seed=4).at(0), seen[0])
    assert not same(seen[0], seen[1])


def test_the_rows_of_all_processes_are_the_batch(make: Make) -> None:
    batches = make(seed=1)
    for step in (0, 7):
        whole = batches.at(step)
        for world in (1, 2, 3):
            parts = [batches.at(step, rank, world) for rank in range(world)]
            for name, tensor in whole.tensors.items():
                assert torch.equal(torch.cat([part.tensors[name] for part in parts]), tensor)


def test_every_example_of_a_run_has_its_own_number(make: Make) -> None:
    batches = make()
    numbers = torch.cat([batches.at(step).index for step in range(3 * batches.steps_per_epoch)])
    assert len(numbers.unique()) == len(numbers)
    assert numbers.dtype == torch.int64


def test_batches_survive_pickling(make: Make) -> None:
    batches = make(seed=2)
    expected = batches.at(5)
    raw = pickle.dumps(batches)
    assert same(pickle.loads(raw).at(5), expected)
    assert len(raw) < 200_000


# text


def test_windows_are_the_text(text: Data) -> None:
    split = text.split("train")
    assert isinstance(split, TextSplit)
    ring = np.concatenate([split.document(i) for i in range(len(split))])
    twice = np.concatenate([ring, ring])
    batches = Batches(split, batch_size=4, length=16)
    for step in range(2 * batches.steps_per_epoch):
        for row in batches.at(step).tokens.numpy():
            assert any((twice[s : s + 17] == row).all() for s in np.flatnonzero(ring == row[0]))


def test_an_epoch_of_text_predicts_no_token_twice(text: Data) -> None:
    split = text.split("train")
    batches = Batches(split, batch_size=1, length=16)
    for epoch in range(3):
        n = split.n_tokens // 16
        rows = [batches.at(epoch * n + i).tokens[0, 1:].tolist() for i in range(n)]
        # the words of this text are all different, so a window is known by its content
        assert len({tuple(row) for row in rows}) == n
    assert batches.steps_per_epoch == split.n_tokens // 16


def test_windows_begin_elsewhere_in_every_epoch(text: Data) -> None:
    split = text.split("train")
    n = split.n_tokens // 16
    batches = Batches(split, batch_size=1, length=16)
    epochs = [{tuple(batches.at(e * n + i).tokens[0].tolist()) for i in range(n)} for e in range(4)]
    assert len(set.union(*epochs)) > 2 * n


@pytest.mark.parametrize(("batch_size", "length"), [(1, 1), (3, 16), (4, 7), (64, 5), (2, 10_000)])
def test_validation_predicts_every_token_once(text: Data, batch_size: int, length: int) -> None:
    split = text.split("valid")
    assert isinstance(split, TextSplit)
    stream = np.concatenate([split.document(i) for i in range(len(split))])
    batches = Batches(split, batch_size=batch_size, length=length, shuffle=False)
    targets: list[int] = []
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        keep = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.keep is None else batch.keep
        assert keep[:, 0].all()
        assert (batch.tokens[~keep] == split.tokenizer.pad).all()
        targets += batch.tokens[:, 1:][keep[:, 1:]].tolist()
    assert targets == stream[1:].tolist()
    assert same(batches.at(batches.steps_per_epoch).replace(index=batches.at(0).index), batches.at(0))


def test_packed_documents_are_numbered_anew(text: Data) -> None:
    batches = Batches(text.split("train"), batch_size=4, length=64, packed=True)
    seen = Counter[int]()
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        assert batch.positions is not None
        assert batch.document is not None
        assert batch.positions.shape == batch.document.shape == batch.tokens.shape
        for tokens, positions, document in zip(batch.tokens, batch.positions, batch.document, strict=True):
            begins = tokens == text.tokenizer.bos
            begins[0] = True
            # by the definition: a document begins at bos, and what is cut off by the window begins with it
            assert torch.equal(document, begins.cumsum(0) - 1)
            last = 0
            for i in range(len(tokens)):
                last = i if begins[i] else last
                assert positions[i] == i - last
            seen[int(document[-1])] += 1
    assert max(seen) >= 2


def test_packing_changes_no_token(text: Data) -> None:
    plain, packed = (Batches(text.split("train"), batch_size=4, length=32, packed=p) for p in (False, True))
    assert torch.equal(plain.at(9).tokens, packed.at(9).tokens)


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_contiguous_rows_go_on_where_they_ended(text: Data, rows: int) -> None:
    split = text.split("train")
    batches = Batches(split, batch_size=rows, length=16, order="contiguous", seed=5)
    per_row = split.n_tokens // 16 // rows
    assert batches.steps_per_epoch == per_row
    starts = []
    for step in range(3 * per_row):
        batch = batches.at(step)
        assert batch.annotation(Continuation).continues_B.tolist() == [step % per_row > 0] * rows
        if step % per_row:
            assert torch.equal(batch.tokens[:, 0], batches.at(step - 1).tokens[:, -1])
        else:
            starts.append(tuple(batch.tokens[0].tolist()))
        # the words of this text are all different, so a window is known by its content
        assert len({tuple(row) for row in batch.tokens.tolist()}) == rows
    assert len(set(starts)) == 3
    seen = {tuple(row) for step in range(per_row) for row in batches.at(step).tokens[:, 1:].tolist()}
    assert len(seen) == per_row * rows


@pytest.mark.parametrize(("batch_size", "length"), [(1, 1), (3, 16), (4, 7), (64, 5), (1000, 1), (2, 10_000)])
def test_contiguous_validation_predicts_every_token_once(text: Data, batch_size: int, length: int) -> None:
    split = text.split("valid")
    assert isinstance(split, TextSplit)
    stream = np.concatenate([split.document(i) for i in range(len(split))])
    batches = Batches(split, batch_size=batch_size, length=length, shuffle=False, order="contiguous")
    rows = len(batches.at(0))
    targets: list[list[int]] = [[] for _ in range(rows)]
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        assert len(batch) == rows
        keep = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.keep is None else batch.keep
        for row, tokens, real in zip(targets, batch.tokens, keep, strict=True):
            row += tokens[1:][real[1:]].tolist()
    assert [token for row in targets for token in row] == stream[1:].tolist()


def test_documents_of_contiguous_rows_are_numbered_across_batches(text: Data) -> None:
    batches = Batches(text.split("train"), batch_size=2, length=16, order="contiguous", packed=True)
    begun = 0
    for step in range(1, batches.steps_per_epoch):
        batch = batches.at(step)
        assert batch.document is not None
        # 0 is what the row before ended in: where a document begins with the batch, its number is 1
        assert torch.equal(batch.document, (batch.tokens == text.tokenizer.bos).cumsum(1))
        begun += int(batch.document[:, 0].sum())
    assert begun


def test_contiguous_rows_need_enough_text(text: Data, pairs: Data) -> None:
    with pytest.raises(DataError, match="too few for 500 contiguous rows of length 64; choose a smaller batch_size"):
        Batches(text.split("train"), batch_size=500, length=64, order="contiguous")
    with pytest.raises(DataError, match="order: unknown 'contigous'; did you mean 'contiguous'"):
        Batches(text.split("train"), batch_size=5, length=64, order="contigous")
    one, two = (Batches(pairs.split("train"), batch_size=4, order=o).at(3) for o in ("shuffled", "contiguous"))
    assert same(one, two)
    assert two.annotation(Continuation) is None


# pairs


def decoded(split: Split, row: torch.Tensor, keep: torch.Tensor) -> str:
    return split.tokenizer.decode(row[keep].numpy())


@pytest.mark.parametrize(
    "options",
    [{}, {"grouping": "none"}, {"grouping": "sorted"}, {"batch_size": 7}, {"batch_size": 2000}, {"shuffle": False}],
)
def test_an_epoch_holds_every_pair_once(pairs: Data, options: dict[str, int]) -> None:
    split = pairs.split("train")
    batches = Batches(split, **{"batch_size": 16} | options)  # type: ignore[arg-type]
    for epoch in range(2):
        seen: Counter[str] = Counter()
        rows = len(split)
        step = epoch * rows // batches.batch_size if "shuffle" not in options else epoch * batches.steps_per_epoch
        first = epoch * rows
        while sum(seen.values()) < rows:
            batch = batches.at(step)
            assert batch.source is not None
            assert batch.source_keep is not None
            for number, source, keep in zip(batch.index, batch.source, batch.source_keep, strict=True):
                if first <= number < first + rows:
                    seen[decoded(split, source, keep)] += 1
            step += 1
        assert set(seen.values()) == {1}
        assert len(seen) == rows


def test_pairs_are_framed_and_padded_on_the_right(pairs: Data) -> None:
    split = pairs.split("valid")
    tokenizer = split.tokenizer
    batch = Batches(split, batch_size=8, shuffle=False).at(0)
    assert batch.source is not None
    assert batch.source_keep is not None
    assert batch.keep is not None
    expected = split.pairs(np.arange(8))  # type: ignore[attr-defined]
    for i, (source, target) in enumerate(expected):
        assert batch.source[i][batch.source_keep[i]].tolist() == [*source, tokenizer.eos]
        assert batch.tokens[i][batch.keep[i]].tolist() == [tokenizer.bos, *target, tokenizer.eos]
    for tokens, keep in ((batch.source, batch.source_keep), (batch.tokens, batch.keep)):
        assert (tokens[~keep] == tokenizer.pad).all()
        assert (keep.int().diff(dim=1) <= 0).all()
        assert keep.any(dim=0).all()


def test_another_epoch_is_another_order(pairs: Data) -> None:
    split = pairs.split("train")
    batches = Batches(split, batch_size=len(split))
    assert not torch.equal(batches.at(0).source, batches.at(1).source)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [200, 1000])
def test_no_batch_is_over_its_budget(pairs: Data, budget: int) -> None:
    split = pairs.split("train")
    batches = Batches(split, budget=budget)
    for epoch in range(2):
        seen: Counter[str] = Counter()
        for step in range(batches.steps_per_epoch):
            batch = batches.at(epoch * batches.steps_per_epoch + step)
            assert batch.source is not None
            assert batch.source_keep is not None
            assert max(batch.tokens.numel(), batch.source.numel()) <= budget
            seen.update(decoded(split, s, k) for s, k in zip(batch.source, batch.source_keep, strict=True))
        assert set(seen.values()) == {1}
        assert len(seen) == len(split)
    sizes = [batches.at(step).tokens.numel() for step in range(batches.steps_per_epoch)]
    assert np.mean(sizes) > 0.5 * budget


def test_a_long_pair_loses_its_end_and_is_counted(pairs: Data) -> None:
    split = pairs.split("train")
    batches = Batches(split, batch_size=16, length=20)
    long = 0
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step)
        assert batch.source is not None
        assert batch.source.shape[1] <= 20
        assert batch.tokens.shape[1] <= 21
    source, target = split.lengths(np.arange(len(split)))  # type: ignore[attr-defined]
    long = int(((source + 1 > 20) | (target + 2 > 21)).sum())
    assert batches.n_cut == long > 0
    assert Batches(split, batch_size=16).n_cut == 0


# refusals


def test_what_cannot_be_is_refused(text: Data, pairs: Data) -> None:
    train = text.split("train")
    for split, options, message in (
        (train, {"batch_size": 0, "length": 4}, "batch_size must be at least 1"),
        (train, {"batch_size": 1, "length": 0}, "length must be at least 1"),
        (train, {"batch_size": 1}, "give batch_size and length"),
        (train, {"batch_size": 1, "length": 10_000}, r"needs 10001; choose a smaller length"),
        (pairs.split("train"), {"batch_size": 1, "packed": True}, "packing is for text"),
        (pairs.split("train"), {"budget": 5}, "less than the longest pair"),
        (open_data("copy:examples=1000000000000").split("train"), {"budget": 500}, "too many; give batch_size"),
    ):
        with pytest.raises(DataError, match=message):
            Batches(split, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="rank 2 is not in a world of 2"):
        Batches(train, batch_size=1, length=4).at(0, 2, 2)


# any shape


@settings(max_examples=40)
@given(n=st.integers(1, 40), batch_size=st.integers(1, 50), world=st.integers(1, 5))
def test_whatever_the_numbers_nothing_is_lost(n: int, batch_size: int, world: int) -> None:
    data = open_data(f"copy:length=4,examples={n}")
    batches = Batches(data.split("train"), batch_size=batch_size, shuffle=False)
    index = [
        int(i)
        for step in range(batches.steps_per_epoch)
        for rank in range(world)
        for i in batches.at(step, rank, world).index
    ]
    assert index == list(range(n))


def test_many_shards_are_one_stream(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {i}\n" for i in range(250_000)))
    prepare([tmp_path / "a.txt"], tmp_path / "out", Preparation(valid=0))
    split = open_prepared(tmp_path / "out").split("train")
    assert isinstance(split, TextSplit)
    assert len(list((tmp_path / "out").glob("*.bin"))) > 2
    stream = np.concatenate([split.document(i) for i in range(len(split))])
    assert len(stream) == split.n_tokens
    for start in (0, 1_000_000, split.n_tokens - 5):
        expected = np.take(stream, np.arange(start, start + 300_000), mode="wrap")
        assert (split.window(start, 300_000) == expected).all()
        begins = np.flatnonzero(expected == split.tokenizer.bos)
        assert split.begins(start, 300_000).tolist() == [int(b) for b in begins if b > 0]
