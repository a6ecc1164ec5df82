"""What noise does to a text: by hand, by count, and by what must be left of it."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import from_plain, to_plain
from kinfolk.core.rng import Rng
from kinfolk.data.tokenizers.pieces import pieces_of
from kinfolk.data.tokenizers.tokenizer import Tokenizer
from kinfolk.objectives.denoise import T5_TABLE, Denoising, DropTokens, PrefixLM
from kinfolk.objectives.mass import MaskedFragment
from kinfolk.objectives.noise import Deletion, Infilling, Masking, Permutation, Rotation, Shuffling
from kinfolk.objectives.objective import Objective, Vocabulary
from kinfolk.objectives.span import SpanCorruption

WIDE = Vocabulary(10_000)
BOS, EOS, MASK = WIDE.bos, WIDE.eos, WIDE.mask
ROW = np.arange(100, 300)


def draw(seed=0):
    return np.random.default_rng(seed)


class Dice:
    """A generator whose draws are written down beforehand."""

    def __init__(self, **draws):
        self.draws = {name: list(values) for name, values in draws.items()}

    def __getattr__(self, name):
        return lambda *args, **kwargs: np.array(self.draws[name].pop(0))


def spelt(text):
    """Return a text's bytes as ids, and a vocabulary that knows its words and sentences."""
    tokenizer = Tokenizer.byte()
    return np.array(tokenizer.encode(text)), Vocabulary(tokenizer.vocab_size, pieces=pieces_of(tokenizer)), tokenizer


# by hand: "Thank you for inviting me to your party last week ." with "for inviting", "last" lost, as in T5's table 3

PARTY = np.arange(11, 22)
LOST = np.array([c == "#" for c in "..##....#.."])


def test_the_rows_of_the_table_on_the_example_of_the_paper():
    lots = np.where(LOST, 0.0, 0.9)
    other = {"choice": [np.full(3, 77)] * 2}
    shown = Denoising(noise=(Masking(),)).divide(PARTY, Dice(random=[lots, np.full(3, 0.5)], **other), WIDE)
    assert shown.source.tolist() == [11, 12, MASK, MASK, 15, 16, 17, 18, MASK, 20, 21, EOS]
    assert shown.target.tolist() == [*PARTY.tolist(), EOS]
    swapped = np.array([0.5, 0.05, 0.5])
    bert = T5_TABLE["bert-style"].divide(PARTY, Dice(random=[lots, swapped], **other), WIDE)
    assert bert.source.tolist() == [11, 12, MASK, 77, 15, 16, 17, 18, MASK, 20, 21, EOS]
    dropped = DropTokens().divide(PARTY, Dice(random=[lots]), WIDE)
    assert dropped.source.tolist() == [11, 12, 15, 16, 17, 18, 20, 21, EOS]
    assert dropped.target.tolist() == [13, 14, 19, EOS]
    x, y, z = (WIDE.size + 100 - k for k in (1, 2, 3))
    spans = SpanCorruption(noise="tokens").divide(PARTY, Dice(random=[lots]), WIDE)
    assert spans.source.tolist() == [11, 12, x, 15, 16, 17, 18, y, 20, 21, EOS]
    assert spans.target.tolist() == [x, 13, 14, y, 19, z, EOS]
    prefix = PrefixLM().divide(PARTY, Dice(integers=[4]), WIDE)
    assert prefix.source.tolist() == [11, 12, 13, 14, EOS]
    assert prefix.target.tolist() == [*range(15, 22), EOS]
    order = PARTY[::-1]
    turned = T5_TABLE["deshuffling"].divide(PARTY, Dice(permutation=[order]), WIDE)
    assert turned.source.tolist() == [*order.tolist(), EOS]


def test_the_released_code_names_the_kept_runs():
    """A sentinel for each kept run: no closing one after drawn spans, and names off by one where a text begins lost."""
    code = SpanCorruption(noise="tokens", closing="code")
    x, y, z = (WIDE.size + 100 - k for k in (1, 2, 3))
    row = np.arange(11, 16)
    ends = code.divide(row, Dice(random=[np.array([0.9, 0.0, 0.9, 0.9, 0.0])]), WIDE)
    assert (ends.source.tolist(), ends.target.tolist()) == ([11, x, 13, 14, y, EOS], [x, 12, y, 15, EOS])
    begins = code.divide(row, Dice(random=[np.array([0.0, 0.9, 0.9, 0.0, 0.9])]), WIDE)
    assert (begins.source.tolist(), begins.target.tolist()) == ([x, 12, 13, y, 15, EOS], [11, x, 14, y, EOS])
    assert z not in ends.target
    drawn = SpanCorruption(closing="code").divide(ROW, draw(), WIDE)
    bare = SpanCorruption(closing="none").divide(ROW, draw(), WIDE)
    assert np.array_equal(drawn.source, bare.source)
    assert np.array_equal(drawn.target, bare.target)


def test_more_runs_than_sentinels_are_left_as_they_were():
    few = SpanCorruption(noise="tokens", n_sentinels=12)
    row = np.arange(100, 160)
    made = [few.divide(row, draw(seed), WIDE) for seed in range(200)]
    used = [int((halves.source >= WIDE.size).sum()) for halves in made]
    assert max(used) == 11 - 1
    for halves in made:
        assert (halves.target[halves.target >= WIDE.size] >= WIDE.size).all()
        text = set(halves.source[halves.source < WIDE.size]) | set(halves.target[halves.target < WIDE.size])
        assert set(row) <= text
    with pytest.raises(SpecError, match="too few for 2000 tokens"):
        few.divide(np.arange(100, 2100), draw(), WIDE)


# by count


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_each_token_is_masked_or_lost_with_its_probability(share):
    long = np.arange(100, 9100)
    masked = Masking(share=share, as_random=0.25).apply(long, draw(), WIDE)
    changed = masked != long
    # five standard deviations of a share over 9,000 tokens
    near = 5 * math.sqrt(share * (1 - share) / 9000)
    assert changed.mean() == pytest.approx(share, abs=near)
    assert (masked[changed] != MASK).mean() == pytest.approx(0.25, abs=0.06)
    assert len(Deletion(share=share).apply(long, draw(1), WIDE)) / 9000 == pytest.approx(1 - share, abs=near)
    lost = DropTokens(share=share).divide(long, draw(2), WIDE)
    assert (len(lost.target) - 1) / 9000 == pytest.approx(share, abs=near)
    assert np.array_equal(np.sort(np.concatenate([lost.source[:-1], lost.target[:-1]])), long)


def test_special_tokens_are_never_touched():
    row = np.array([EOS, 100, 101, EOS, 102, 103, EOS])
    for noise in (Masking(share=0.999), Deletion(share=0.999), Infilling(share=0.999)):
        for seed in range(20):
            assert (noise.apply(row, draw(seed), WIDE) == EOS).sum() == 3
    assert Infilling().apply(np.array([EOS, EOS]), draw(), WIDE).tolist() == [EOS, EOS]


@pytest.mark.parametrize("n", [1, 2, 7, 200])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_infilling_loses_its_budget_and_leaves_the_rest_in_order(n, share):
    row, budget = np.arange(100, 100 + n), math.ceil(share * n)
    for seed in range(30):
        out = Infilling(share=share).apply(row, draw(seed), WIDE)
        left = out[out != MASK]
        assert len(left) == n - budget
        assert (np.diff(left) > 0).all()
        lengths, empty = Infilling(share=share).lengths(budget, draw(seed))
        assert lengths.sum() == budget
        assert (out == MASK).sum() == len(lengths) + empty


def test_lengths_are_poisson_and_empty_spans_are_among_them():
    lengths, empty = Infilling().lengths(300_000, draw())
    seen = Counter(lengths.tolist()) + Counter({0: empty})
    n = sum(seen.values())
    for k in range(9):
        expected = math.exp(-3) * 3**k / math.factorial(k)
        assert seen[k] / n == pytest.approx(expected, abs=5 * math.sqrt(expected / n))


@pytest.mark.parametrize("mean", [0.5, 1.0])
def test_empty_spans_come_along_at_the_smallest_budget(mean):
    """Lengths are drawn until one is not empty, so empty ones are geometric: odds p / (1 - p) with p = exp(-mean)."""
    n, p = 4000, math.exp(-mean)
    found = [Infilling(mean_span=mean).lengths(1, draw(seed)) for seed in range(n)]
    assert all(lengths.tolist() == [1] for lengths, _ in found)
    error = math.sqrt(p / n) / (1 - p)
    assert sum(empty for _, empty in found) / n == pytest.approx(p / (1 - p), abs=5 * error)


def test_spans_lie_anywhere():
    """One span of two among five: four places, as likely; two of one: six ways."""
    from kinfolk.objectives.noise import _firsts

    once = Counter(int(_firsts(5, np.array([2]), draw(i))[0]) for i in range(4000))
    assert set(once) == {0, 1, 2, 3}
    assert all(abs(count - 1000) < 140 for count in once.values())
    twice = Counter(tuple(_firsts(4, np.array([1, 1]), draw(i)).tolist()) for i in range(6000))
    assert set(twice) == {(i, j) for i in range(4) for j in range(i + 1, 4)}
    assert all(abs(count - 1000) < 150 for count in twice.values())


class Threes:
    """Stands for a tokenizer whose words are three pieces each."""

    def word_starts(self, ids):
        return np.arange(len(ids)) % 3 == 0


def test_whole_words_are_lost():
    row, vocabulary = np.arange(100, 160), Vocabulary(1000, pieces=Threes())
    for seed in range(30):
        out = Infilling(mean_span=1.0).apply(row, draw(seed), vocabulary)
        left = out[out != MASK]
        assert len(left) == 3 * (20 - math.ceil(0.3 * 20))
        assert Counter(((left - 100) // 3).tolist()) == dict.fromkeys(set(((left - 100) // 3).tolist()), 3)
    out = Infilling(unit="token").apply(row, draw(), vocabulary)
    assert set(Counter(((out[out != MASK] - 100) // 3).tolist()).values()) - {3}


def test_sentences_change_places_and_nothing_else():
    row, vocabulary, tokenizer = spelt("One is here. Two goes on! And is three? Four.\nFive at last.")
    sentences = [b"One is here.", b" Two goes on!", b" And is three?", b" Four.\n", b"Five at last."]
    found = Counter()
    for seed in range(600):
        out = tokenizer.decode_bytes(Permutation().apply(row, draw(seed), vocabulary))
        at = sorted((out.index(s), i) for i, s in enumerate(sentences))
        assert b"".join(sentences[i] for _, i in at) == out
        found[tuple(i for _, i in at)] += 1
    # 120 orders, five of each on average
    assert len(found) > 100
    half = [tokenizer.decode_bytes(Permutation(share=0.4).apply(row, draw(seed), vocabulary)) for seed in range(50)]
    whole = tokenizer.decode_bytes(row)
    for out in half:
        assert sum(out.index(s) != whole.index(s) for s in sentences) != 1
    assert Permutation(share=0.0).apply(row, draw(), vocabulary).tolist() == row.tolist()


def test_rotation_is_a_turn():
    seen = Counter()
    for seed in range(400):
        out = Rotation().apply(ROW[:5], draw(seed), WIDE)
        first = int(out[0]) - 100
        assert out.tolist() == [*range(100 + first, 105), *range(100, 100 + first)]
        seen[first] += 1
    assert all(abs(seen[k] - 80) < 45 for k in range(5))
    turned = [Rotation(share=0.5).apply(ROW, draw(seed), WIDE)[0] != 100 for seed in range(400)]
    assert np.mean(turned) == pytest.approx(0.5, abs=0.13)


def test_shuffling_keeps_every_token():
    out = Shuffling().apply(ROW, draw(), WIDE)
    assert sorted(out.tolist()) == ROW.tolist()
    assert (out != ROW).mean() > 0.9


def test_noises_act_in_turn():
    row, vocabulary, _ = spelt("One is here. Two goes on! And is three?")
    both = Denoising(noise=(Permutation(), Deletion(share=0.3), Rotation()))
    halves = both.divide(row, draw(), vocabulary)
    generator = draw()
    by_hand = row
    for noise in both.noise:
        by_hand = noise.apply(by_hand, generator, vocabulary)
    assert halves.source.tolist() == [*by_hand.tolist(), EOS]
    assert halves.target.tolist() == [*row.tolist(), EOS]


# MASS


def test_a_fragment_begins_ends_or_lies_anywhere():
    starts = Counter()
    for seed in range(4000):
        first, n = MaskedFragment().fragment(20, draw(seed))
        assert n == 10
        starts[first] += 1
    # one in eleven of the others begins or ends the text as well
    edge = 0.2 + 0.6 / 11
    assert starts[0] / 4000 == pytest.approx(edge, abs=0.035)
    assert starts[10] / 4000 == pytest.approx(edge, abs=0.035)
    assert all(starts[k] / 4000 == pytest.approx(0.6 / 11, abs=0.02) for k in range(1, 10))


def test_the_decoder_reads_the_fragment_shifted_at_its_own_positions():
    read = Batch(index=torch.arange(64), tokens=torch.arange(100, 142).repeat(64, 1))
    made = MaskedFragment().prepare(read, Rng(0), WIDE)
    first = made.positions[:, 0]
    assert first.unique().numel() > 5
    assert made.targets.shape == (64, 20)
    assert torch.equal(made.targets, 100 + made.positions)
    before = torch.where(first == 0, BOS, 99 + first)
    assert torch.equal(made.tokens[:, 0], before)
    assert torch.equal(made.tokens[:, 1:], made.targets[:, :-1])
    hidden = (torch.arange(40) >= first[:, None]) & (torch.arange(40) < first[:, None] + 20)
    source = made.source[:, :-1]
    assert torch.equal(source[~hidden], read.tokens[:, :40][~hidden])
    shown = source[hidden]
    n = shown.numel()
    assert float((shown == MASK).sum() / n) == pytest.approx(0.8, abs=0.06)
    assert float((shown == (read.tokens[:, :40][hidden])).sum() / n) == pytest.approx(0.1, abs=0.05)


def test_fragments_of_one_and_of_all():
    one = MaskedFragment(share=0.0).divide(ROW, draw(), WIDE)
    assert len(one.target) == 1
    everything = MaskedFragment(share=1.0, as_mask=1.0, as_random=0.0).divide(ROW, draw(), WIDE)
    assert (everything.before, everything.first) == (None, 0)
    assert everything.target.tolist() == ROW.tolist()
    assert set(everything.source.tolist()) == {MASK, EOS}


# what all share

ALL = {
    **T5_TABLE,
    "bart": Denoising(),
    "bart-mask": Denoising(noise=(Masking(),)),
    "bart-delete": Denoising(noise=(Deletion(),)),
    "bart-rotate": Denoising(noise=(Rotation(),)),
    "mass": MaskedFragment(),
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("n", [2, 3, 9, 64])
def test_nothing_is_longer_than_what_was_read(name, n):
    read = Batch(index=torch.arange(20), tokens=torch.randint(7, 100, (20, n + 1)))
    made = ALL[name].prepare(read, Rng(0), Vocabulary(100))
    # a sentinel for each lost token and the end make one more; of very short texts the target has more
    longest = n + (4 if n < 9 else 1) if isinstance(ALL[name], SpanCorruption) else n
    assert made.source.shape[1] <= longest
    assert made.targets.shape[1] <= longest
    assert made.tokens.shape == made.targets.shape
    assert (made.targets != IGNORE).any(1).all()


@pytest.mark.parametrize("name", ALL)
def test_padding_is_no_text(name):
    tokens = torch.arange(100, 141).repeat(2, 1)
    keep = torch.arange(41) < torch.tensor([[41], [20]])
    made = ALL[name].prepare(Batch(index=torch.arange(2), tokens=tokens, keep=keep), Rng(0), WIDE)
    seen = torch.cat([made.source[1], made.targets[1], made.tokens[1]])
    assert not ((seen >= 120) & (seen < 141)).any()
    assert (made.targets[1][~made.keep[1]] == IGNORE).all() if made.keep is not None else True


@pytest.mark.parametrize("name", ALL)
def test_values_survive_plain_data(name):
    assert from_plain(Objective, to_plain(ALL[name])) == ALL[name]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Masking(share=0.0), "share: 0.0"),
        (lambda: Masking(as_random=1.5), "as_random"),
        (lambda: Infilling(mean_span=0.0), "mean_span"),
        (lambda: Infilling(unit="wrod"), "did you mean 'word'"),
        (lambda: Denoising(noise=()), "only copied"),
        (lambda: MaskedFragment(at_start=0.7, at_end=0.7), "more than all"),
        (lambda: SpanCorruption(noise="token"), "did you mean 'tokens'"),
        (lambda: Rotation(share=-0.1), "share"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(SpecError, match=message):
        make()
