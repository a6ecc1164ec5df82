"""Pairs of passages: made by hand, by count, and from documents."""

import functools

import numpy as np
import pytest
import torch

from kinfolk.core.annotations import OtherDocument
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import DataError, SpecError
from kinfolk.core.pieces import TokenPieces
from kinfolk.core.rng import Rng
from kinfolk.data import Batches, open_data
from kinfolk.data.splits.passages import elsewhere
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.sentences import SentencePairs, framed, trimmed
from kinfolk.runs.vocabulary import vocabulary_of

NO = np.zeros(100, dtype=bool)
STOP = np.arange(100) == 10
# 10 is a full stop: a sentence ends with it, whatever follows
VOCABULARY = Vocabulary(100, pieces=TokenPieces(leads=NO, follows=NO, stops=STOP, spaced=~NO, breaks=NO))
OWN = np.array([20, 21, 10, 30, 10, 40, 41, 42, 10])
OTHER = np.array([50, 51, 10, 60, 61, 62, 63, 64, 65, 66])


def pairs(objective, n=400, own=OWN, other=OTHER, limit=40):
    return [objective.pair(own, other, limit, Rng(0).example(i), VOCABULARY) for i in range(n)]


def text(ids):
    return tuple(np.asarray(ids).tolist())


def test_the_next_passage_is_the_rest_or_of_another_document():
    found = pairs(SentencePairs(short=0.0))
    for a, b, label in found:
        if label == 0:
            assert text(np.concatenate([a, b])) == text(OWN)
        else:
            # it begins with a sentence and is as long as what it stands for
            assert text(b) == text(OTHER[3:])[: len(OWN) - len(a)]
        assert text(a) in (text(OWN[:3]), text(OWN[:5]))
    assert 160 < sum(label for *_, label in found) < 240
    assert {len(a) for a, *_ in found} == {3, 5}


def test_passages_in_order_or_exchanged():
    found = pairs(SentencePairs(question="order", short=0.0))
    for a, b, label in found:
        first, second = (b, a) if label else (a, b)
        assert text(np.concatenate([first, second])) == text(OWN)
        assert len(first) in (3, 5)
    assert 160 < sum(label for *_, label in found) < 240


def test_a_passage_of_one_sentence():
    alone = OWN[5:]
    for a, b, label in pairs(SentencePairs(short=0.0), 20, own=alone):
        assert label == 1
        assert text(a) == text(alone)
        assert text(b) == text(OTHER[3:])
    cuts = set()
    for a, b, label in pairs(SentencePairs(question="order", short=0.0), 100, own=alone):
        assert text(np.concatenate([b, a] if label else [a, b])) == text(alone)
        cuts.add(len(b) if label else len(a))
    assert cuts == {1, 2, 3}


def test_some_passages_are_short():
    lengths = [len(a) + len(b) for a, b, _ in pairs(SentencePairs(question="order", short=0.5), own=np.full(40, 20))]
    assert 150 < sum(n < 40 for n in lengths) < 250
    assert min(lengths) < 8


def test_the_longer_loses_its_ends():
    a, b = np.arange(10, 20), np.arange(30, 33)
    for seed in range(20):
        x, y = trimmed(a, b, 9, Rng(seed).example(0))
        assert text(y) == text(b)
        assert len(x) == 6
        assert (np.diff(x) == 1).all()
    assert len({text(trimmed(a, b, 9, Rng(seed).example(0))[0]) for seed in range(20)}) > 2
    x, y = trimmed(a, a + 20, 5, Rng(0).example(0))
    assert {len(x), len(y)} == {2, 3}


def test_the_frame():
    tokens, segments, keep = framed(
        [(np.array([20, 21]), np.array([30])), (np.array([20]), np.array([40]))], 8, VOCABULARY
    )
    assert tokens.tolist() == [[5, 20, 21, 4, 30, 4, 0, 0], [5, 20, 4, 40, 4, 0, 0, 0]]
    assert segments.tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert keep.sum(1).tolist() == [6, 5]


@pytest.mark.parametrize("question", ["next", "order"])
def test_rows_are_framed_hidden_and_labelled_whatever_the_split_of_the_batch(question):
    objective = SentencePairs(question=question)
    draw = torch.Generator().manual_seed(0)
    tokens, others = torch.randint(20, 99, (2, 6, 41), generator=draw)
    tokens[:, ::7], others[:, ::5] = 10, 10
    batch = Batch(index=torch.arange(6), tokens=tokens, annotations=(OtherDocument(others),))
    made = objective.prepare(batch, Rng(3), VOCABULARY)
    assert made.tokens.shape == made.segments.shape == made.keep.shape == (6, 40)
    assert set(made.labels.tolist()) == {0, 1}
    for i in range(6):
        alone = objective.prepare(batch.rows(slice(i, i + 1)), Rng(3), VOCABULARY)
        for name in ("tokens", "targets", "segments", "labels", "keep"):
            assert torch.equal(getattr(alone, name)[0], getattr(made, name)[i])
    special = (made.tokens == VOCABULARY.cls) | (made.tokens == VOCABULARY.sep) | ~made.keep
    assert (made.targets[special] == IGNORE).all()
    assert (special.sum(1) == 3 + (~made.keep).sum(1)).all()
    # what is hidden is in the passage or in the other, and nothing else is predicted
    scored = made.targets != IGNORE
    assert (scored.sum(1) >= 1).all()


def test_pairs_of_the_data_are_rows_in_two_segments_of_which_nobody_asks():
    batch = Batch(index=torch.arange(1), source=torch.tensor([[20, 21]]), tokens=torch.tensor([[1, 30, 2]]))
    made = SentencePairs().prepare(batch, Rng(0), VOCABULARY)
    assert made.tokens.shape == (1, 5)
    assert made.segments.tolist() == [[0, 0, 0, 1, 1]]
    assert made.labels.tolist() == [IGNORE]


def test_refusals():
    with pytest.raises(SpecError, match="did you mean 'order'"):
        SentencePairs(question="ordr")
    with pytest.raises(SpecError, match=r"training\.order=documents"):
        SentencePairs().prepare(Batch(index=torch.arange(1), tokens=torch.ones(1, 9).long()), Rng(0), VOCABULARY)


@functools.cache
def library():
    return open_data("stdlib:megabytes=1")


def bytes_of(data, ids):
    return data.tokenizer.decode_bytes(ids.numpy())


def test_passages_lie_in_one_document_and_the_others_in_another():
    data = library()
    split = data.split("train")
    documents = [data.tokenizer.decode_bytes(split.document(i)) for i in range(len(split))]
    batch = Batches(split, batch_size=16, length=96, order="documents", seed=1).at(2)
    passage = batch.annotation(OtherDocument)
    assert batch.tokens.shape == passage.tokens_BM.shape == (16, 97)
    for i in range(16):
        own = bytes_of(data, batch.tokens[i][batch.keep[i]])
        other = bytes_of(data, passage.tokens_BM[i][passage.keep_BM[i]])
        assert len(own) >= 48 or any(d.startswith(own) or d.endswith(own) for d in documents)
        holds = [d for d in documents if own in d]
        assert holds
        assert len(holds) > 1 or other not in holds[0]
        assert any(other in d for d in documents)


def test_passages_are_the_same_whatever_the_number_of_processes():
    whole = Batches(library().split("train"), batch_size=8, length=64, order="documents", seed=1)
    objective, vocabulary = SentencePairs(unit="word"), vocabulary_of(library().tokenizer)
    together = objective.prepare(whole.at(5), Rng(0), vocabulary)
    apart = [objective.prepare(whole.at(5, rank, 4), Rng(0), vocabulary) for rank in range(4)]
    for name in ("tokens", "targets", "segments", "labels", "keep"):
        assert torch.equal(getattr(together, name), torch.cat([getattr(x, name) for x in apart]))
    valid = Batches(library().split("valid"), batch_size=8, length=64, order="documents", shuffle=False)
    last = valid.at(valid.steps_per_epoch - 1)
    assert last.keep.any(1).all()


class One:
    """A split of one document."""

    name = "train"

    def __len__(self):
        return 1


class Two(One):
    """A split of two documents: ten tokens below 20, then thirty above."""

    tokenizer = Vocabulary(100)
    stream = np.concatenate([[1], np.arange(10, 18), [2], [1], np.arange(30, 58), [2]])

    def __len__(self):
        return 2

    def document_at(self, place):
        return int(place >= 10)

    def bounds(self, index):
        return ((0, 10), (10, 40))[index]

    def window(self, start, width):
        return self.stream[start : start + width]


@pytest.mark.parametrize("place", [0, 9, 10, 39])
def test_another_document_is_never_the_own(place):
    starts = set()
    for i in range(60):
        found = elsewhere(Two(), place, 5, Rng(0).example(i))
        assert ((found >= 30) == (place < 10)).all()
        assert 4 <= len(found) <= 5
        starts.add(int(found[0]))
    # it begins anywhere in it
    assert len(starts) >= 5


def test_one_document_is_not_enough():
    with pytest.raises(DataError, match="two or more are needed"):
        elsewhere(One(), 0, 8, Rng(0).example(0))
