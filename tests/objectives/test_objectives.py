"""What objectives make of a batch, by hand and by count."""

import pytest
import torch

from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.objectives.causal import CausalLM
from kinfolk.objectives.masked import MaskedLM
from kinfolk.objectives.objective import Vocabulary, joined
from kinfolk.objectives.sequence import SequenceToSequence

VOCABULARY = Vocabulary(100)
PAIRS = Batch(
    index=torch.arange(2),
    source=torch.tensor([[10, 11, 12], [20, 0, 0]]),
    source_keep=torch.tensor([[True, True, True], [True, False, False]]),
    tokens=torch.tensor([[1, 30, 2, 0], [1, 40, 41, 2]]),  # opening, target, closing, padding
    keep=torch.tensor([[True, True, True, False], [True, True, True, True]]),
)
TEXT = Batch(index=torch.arange(2), tokens=torch.arange(10, 28).view(2, 9))


def test_causal_text_predicts_every_next_token():
    out = CausalLM().prepare(TEXT, Rng(0), VOCABULARY)
    assert torch.equal(out.tokens, TEXT.tokens[:, :-1])
    assert torch.equal(out.targets, TEXT.tokens[:, 1:])


def test_causal_pairs_are_one_row_and_score_the_target_only():
    out = CausalLM().prepare(PAIRS, Rng(0), VOCABULARY)
    assert out.tokens.tolist() == [[10, 11, 12, 4, 30], [20, 4, 40, 41, 2]]
    assert out.targets.tolist() == [[IGNORE, IGNORE, IGNORE, 30, 2], [IGNORE, 40, 41, 2, IGNORE]]
    tokens, keep, is_target = joined(PAIRS, 4, 0)
    assert tokens.tolist() == [[10, 11, 12, 4, 30, 2], [20, 4, 40, 41, 2, 0]]
    assert keep.sum(1).tolist() == [6, 5]
    assert is_target.sum(1).tolist() == [2, 3]


def test_causal_packed_documents_do_not_predict_each_other():
    document = torch.tensor([[0] * 4 + [1] * 5] * 2)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]] * 2)
    out = CausalLM().prepare(TEXT.replace(document=document, positions=positions), Rng(0), VOCABULARY)
    assert (out.targets == IGNORE).nonzero().tolist() == [[0, 3], [1, 3]]
    assert torch.equal(out.positions, positions[:, :-1])


def test_sequence_pairs_are_shifted_right():
    out = SequenceToSequence().prepare(PAIRS, Rng(0), VOCABULARY)
    assert out.tokens.tolist() == [[1, 30, 2], [1, 40, 41]]
    assert out.targets.tolist() == [[30, 2, IGNORE], [40, 41, 2]]
    assert torch.equal(out.source, PAIRS.source)


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_text_halves_score_the_tokens_that_a_causal_model_scores_late(length):
    text = Batch(index=torch.arange(1), tokens=torch.arange(10, 11 + length)[None])
    halves = SequenceToSequence().prepare(text, Rng(0), VOCABULARY)
    causal = CausalLM().prepare(text, Rng(0), VOCABULARY)
    assert torch.equal(halves.targets, causal.targets[:, length // 2 :])
    assert torch.equal(torch.cat([halves.source, halves.targets], 1), text.tokens)
    assert halves.tokens[:, 0].tolist() == [VOCABULARY.bos]
    assert torch.equal(halves.tokens[:, 1:], halves.targets[:, :-1])


def masked(n=200, length=101):
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(7, 100, (n, length), generator=g)
    tokens[:, 5] = VOCABULARY.sep
    batch = Batch(index=torch.arange(n), tokens=tokens)
    return batch, MaskedLM().prepare(batch, Rng(3), VOCABULARY)


def test_masked_chooses_an_exact_number_and_never_a_special_token():
    batch, out = masked()
    chosen = out.targets != IGNORE
    assert (chosen.sum(1) == round(0.15 * 99)).all()
    assert not chosen[:, 5].any()
    original = batch.tokens[:, :-1]
    assert torch.equal(out.targets[chosen], original[chosen])
    assert torch.equal(out.tokens[~chosen], original[~chosen])


def test_masked_shows_80_10_10():
    _, out = masked()
    chosen = out.targets != IGNORE
    n = int(chosen.sum())
    as_mask = (out.tokens[chosen] == VOCABULARY.mask).sum() / n
    as_was = (out.tokens[chosen] == out.targets[chosen]).sum() / n
    # standard error of a share near 0.1 over 3,000 tokens is 0.006
    assert float(as_mask) == pytest.approx(0.8, abs=0.03)
    assert float(as_was) == pytest.approx(0.1 + 0.1 / 93, abs=0.025)
    assert out.tokens.max() < 100


def test_masked_depends_on_the_seed_and_the_example_only():
    batch, out = masked()
    rows = slice(50, 60)
    part = MaskedLM().prepare(batch.rows(rows), Rng(3), VOCABULARY)
    assert torch.equal(part.tokens, out.tokens[rows])
    assert torch.equal(part.targets, out.targets[rows])
    assert not torch.equal(MaskedLM().prepare(batch, Rng(4), VOCABULARY).tokens, out.tokens)


def test_an_unknown_way_of_smoothing_is_refused():
    with pytest.raises(SpecError, match="did you mean 'others'"):
        SequenceToSequence(over="other")
