"""Which tokens are hidden, how many, and as what."""

import numpy as np
import pytest
import torch

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.pieces import TokenPieces
from kinfolk.core.rng import Rng
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.objective import Vocabulary

NO = np.zeros(1000, dtype=bool)
# an odd id goes on with the word of the id before it
ODD = np.arange(1000) % 2 == 1
VOCABULARY = Vocabulary(1000, pieces=TokenPieces(leads=~NO, follows=ODD, stops=NO, spaced=NO, breaks=NO))
#            word   word       word  special word  word
ROW = np.array([20, 30, 31, 33, 40, 4, 50, 51, 60])
WORDS = [{0}, {1, 2, 3}, {4}, {6, 7}, {8}]


def text(n_rows, length, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return Batch(index=torch.arange(n_rows), tokens=torch.randint(7, 1000, (n_rows, length + 1), generator=draw))


def test_proportions_over_many_tokens():
    read = text(200, 500)
    made = MaskedLM().prepare(read, Rng(0), VOCABULARY)
    chosen, before = made.targets != IGNORE, read.tokens[:, :-1]
    assert (chosen.sum(1) == 75).all()
    assert torch.equal(made.targets[chosen], before[chosen])
    assert torch.equal(made.tokens[~chosen], before[~chosen])
    shown, n = made.tokens[chosen], 15_000
    masked, kept = int((shown == VOCABULARY.mask).sum()), int((shown == before[chosen]).sum())
    # chi-square over mask, other, kept: 13.8 is exceeded once in a thousand
    found = np.array([masked, n - masked - kept, kept])
    want = n * np.array([0.8, 0.1 * 992 / 993, 0.1 + 0.1 / 993])
    assert ((found - want) ** 2 / want).sum() < 13.8
    others = shown[(shown != VOCABULARY.mask) & (shown != before[chosen])]
    assert others.min() >= 7
    # every position is as likely
    assert chosen.sum(0).min() > 5


def test_words_are_hidden_whole_by_hand():
    objective = MaskedLM(unit="word", share=0.4)
    seen = set()
    for i in range(200):
        chosen = set(objective.choose(ROW, Rng(0).example(i), VOCABULARY).tolist())
        # 0.4 of 8 tokens are 3; what does not fit is passed over for what does
        assert 1 <= len(chosen) <= 3
        parts = [word for word in WORDS if word <= chosen]
        assert set().union(*parts) == chosen
        seen |= {frozenset(chosen)}
    assert frozenset({1, 2, 3}) in seen
    assert frozenset({0, 6, 7}) in seen
    assert frozenset({0, 4, 8}) in seen


def test_a_word_longer_than_the_number_is_passed_over_unless_it_is_all_there_is():
    few = MaskedLM(unit="word", share=0.1)
    assert all(set(few.choose(ROW, Rng(0).example(i), VOCABULARY).tolist()) in ({0}, {4}, {8}) for i in range(50))
    alone = few.choose(ROW[1:4], Rng(0).example(0), VOCABULARY)
    assert set(alone.tolist()) == {0, 1, 2}


def test_runs_of_words():
    objective = MaskedLM(unit="word", share=0.15, longest=3)
    lengths = np.zeros(8, dtype=int)
    row = np.arange(100, 300, 2)
    for i in range(400):
        chosen = np.sort(objective.choose(row, Rng(0).example(i), VOCABULARY))
        assert len(chosen) == 15
        for run in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1):
            lengths[min(len(run), 7)] += 1
    # runs of 1, 2, 3 are drawn as 6 : 3 : 2; some meet, and the last is cut to fit
    assert lengths[1] > 1.4 * lengths[2]
    assert lengths[2] > lengths[3] > 3 * lengths[4]
    single = MaskedLM(share=0.15, longest=3)
    assert len(single.choose(ROW.repeat(5), Rng(0).example(0), VOCABULARY)) == 6


def test_specials_end_a_run():
    objective = MaskedLM(share=0.3, longest=3)
    row = np.array([20, 4, 22, 4, 24, 4, 26, 4, 28, 4])
    for i in range(50):
        chosen = objective.choose(row, Rng(0).example(i), VOCABULARY)
        assert (row[chosen] != 4).all()


def test_a_run_does_not_reach_across_a_special():
    """Units a b | c d, tried in the order b, a, c, d with runs of two: b alone, because c is behind a special."""

    class Draw:
        def choice(self, longest, n, p):
            return np.full(n, longest - 1)

        def permutation(self, n):
            return np.array([1, 0, 2, 3])

    begins, sizes = np.array([0, 1, 3, 4]), np.ones(4, dtype=int)
    assert MaskedLM(longest=2)._runs(begins, sizes, 2, Draw()).tolist() == [0, 1]


@pytest.mark.parametrize("objective", [MaskedLM(), MaskedLM(unit="word"), MaskedLM(unit="word", longest=3)])
def test_draws_depend_on_the_seed_and_the_example_only(objective):
    read = text(6, 50)
    made = objective.prepare(read, Rng(1), VOCABULARY)
    parts = [objective.prepare(read.rows(rows), Rng(1), VOCABULARY) for rows in (slice(0, 1), slice(1, 6))]
    for name in ("tokens", "targets"):
        assert torch.equal(getattr(made, name), torch.cat([getattr(x, name) for x in parts]))
    assert not torch.equal(made.tokens, objective.prepare(read, Rng(2), VOCABULARY).tokens)
    # dynamic: another reading of the same text hides other tokens
    again = objective.prepare(read.replace(index=read.index + 6), Rng(1), VOCABULARY)
    assert not torch.equal(made.tokens, again.tokens)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [({"unit": "wrd"}, "did you mean 'word'"), ({"share": 0.0}, "share: 0.0"), ({"longest": 0}, "longest: 0")],
)
def test_refusals(numbers, message):
    with pytest.raises(SpecError, match=message):
        MaskedLM(**numbers)
