"""Span corruption: what is lost, where sentinels stand, and that source and target make the text again."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.span import SpanCorruption, _compose

VOCABULARY = Vocabulary(50)
SPANS = SpanCorruption(n_sentinels=10)
X, Y, Z, EOS, BOS = 59, 58, 57, VOCABULARY.eos, VOCABULARY.bos


def draw(seed=0):
    return np.random.default_rng(seed)


def mask(text):
    return np.array([c == "#" for c in text])


def batch(rows, length, seed=0):
    tokens = torch.randint(7, 50, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    return Batch(index=torch.arange(rows), tokens=tokens)


def put_together(source, target):
    """Read the spans off a target and put them where the source has their sentinels."""
    spans, name = {}, None
    for token in target:
        if token >= VOCABULARY.size:
            name = token
            spans[name] = []
        elif token != EOS:
            spans[name].append(token)
    out = []
    for token in source:
        out += spans[token] if token >= VOCABULARY.size else [token] if token != EOS else []
    return out


def test_the_example_of_the_paper():
    """Thank you [for inviting] me to your party [last] week, figure 2."""
    row = np.arange(11, 21)
    source, target = SPANS.split(row, mask("..##....#."), VOCABULARY)[:2]
    assert source.tolist() == [11, 12, X, 15, 16, 17, 18, Y, 20, EOS]
    assert target.tolist() == [X, 13, 14, Y, 19, Z, EOS]
    bare = SPANS.replace(closing="none").split(row, mask("..##....#."), VOCABULARY)[1]
    assert bare.tolist() == [X, 13, 14, Y, 19, EOS]


def test_a_text_that_begins_with_a_span_has_its_sentinel_first():
    source, target = SPANS.split(np.arange(11, 15), mask("#.#."), VOCABULARY)[:2]
    assert source.tolist() == [X, 12, Y, 14, EOS]
    assert target.tolist() == [X, 11, Y, 13, Z, EOS]


def test_the_lengths_of_the_released_code():
    lost = SPANS.lost(568, draw())
    assert lost.sum() == 85
    assert (np.diff(lost.astype(int)) == 1).sum() == 28
    assert (lost[0], lost[-1]) == (False, True)
    wide = SpanCorruption()
    source, target = wide.split(np.full(568, 9), lost, VOCABULARY)[:2]
    assert (len(source), len(target)) == (512, 115)
    assert len(wide.replace(closing="none").split(np.full(568, 9), lost, VOCABULARY)[1]) == 114


@pytest.mark.parametrize(
    ("n", "n_lost", "n_spans"), [(10, 2, 1), (24, 4, 1), (34, 5, 2), (37, 6, 2), (50, 8, 3), (53, 8, 3), (57, 9, 3)]
)
def test_tokens_and_spans_are_rounded_to_the_nearest(n, n_lost, n_spans):
    """15 % and spans of 3, as `random_spans_noise_mask` of the released code rounds them (halves to even)."""
    lost = SPANS.lost(n, draw(n))
    assert lost.sum() == n_lost
    assert (np.diff(lost.astype(int), prepend=0) == 1).sum() == n_spans


@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
def test_short_texts_lose_something_and_keep_something(n):
    lost = SPANS.lost(n, draw(n))
    assert len(lost) == n
    assert lost.sum() == (0 if n == 1 else max(1, round(0.15 * n)))


def test_every_way_to_divide_is_as_likely():
    seen = Counter(tuple(_compose(6, 3, draw(i)).tolist()) for i in range(6000))
    ways = {w for w in itertools.product(range(1, 5), repeat=3) if sum(w) == 6}
    assert set(seen) == ways
    # ten ways, 600 of each: five standard deviations are 117
    assert all(abs(count - 600) < 117 for count in seen.values())


def test_source_and_target_make_the_text_again():
    read = batch(8, 60)
    made = SPANS.prepare(read, Rng(3), VOCABULARY)
    for text, source, target in zip(read.tokens[:, :-1], made.source, made.targets, strict=True):
        assert put_together(source.tolist(), target.tolist()) == text.tolist()
    # what is read is what was predicted a step before
    assert (made.tokens[:, 0] == BOS).all()
    assert torch.equal(made.tokens[:, 1:], made.targets[:, :-1])
    assert made.keep is None


def test_the_source_does_not_show_what_is_lost():
    read = batch(1, 40)
    read = read.replace(tokens=torch.arange(100, 141)[None])
    wide = Vocabulary(200)
    made = SPANS.prepare(read, Rng(0), wide)
    lost = set(made.targets[0].tolist()) & set(range(100, 140))
    assert len(lost) == 6
    assert not lost & set(made.source[0].tolist())


def test_draws_depend_on_the_seed_and_the_example_only():
    read = batch(4, 60)
    made = SPANS.prepare(read, Rng(3), VOCABULARY)
    alone = SPANS.prepare(read.rows(slice(2, 3)), Rng(3), VOCABULARY)
    assert torch.equal(made.source[2:3], alone.source)
    assert not torch.equal(made.source, SPANS.prepare(read, Rng(4), VOCABULARY).source)


def test_padding_is_neither_lost_nor_scored():
    read = batch(2, 60)
    keep = torch.ones(2, 61, dtype=torch.bool)
    keep[1, 20:] = False
    made = SPANS.prepare(read.replace(keep=keep), Rng(0), VOCABULARY)
    assert put_together(made.source[1][made.source_keep[1]].tolist(), made.targets[1][made.keep[1]].tolist()) == (
        read.tokens[1, :20].tolist()
    )
    assert (made.targets[1][~made.keep[1]] == IGNORE).all()
    assert made.keep[0].all()


def test_pairs_are_one_text():
    read = batch(2, 20)
    made = SPANS.prepare(read.replace(source=read.tokens[:, :9]), Rng(0), VOCABULARY)
    whole = put_together(made.source[0].tolist(), made.targets[0].tolist())
    assert whole == [*read.tokens[0, :9].tolist(), VOCABULARY.sep, *read.tokens[0, 1:].tolist()]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"share": 1.0}, "share: 1.0"),
        ({"mean_span": 0.5}, "mean_span"),
        ({"n_sentinels": 1}, "n_sentinels"),
        ({"closing": "sentinal"}, "did you mean 'sentinel'"),
    ],
)
def test_refusals(numbers, message):
    with pytest.raises(SpecError, match=message):
        SpanCorruption(**numbers)


def test_too_few_sentinels_are_refused():
    with pytest.raises(SpecError, match=r"objective\.n_sentinels: 10 are too few for 568 tokens, which take 29"):
        SPANS.prepare(batch(1, 568), Rng(0), VOCABULARY)
