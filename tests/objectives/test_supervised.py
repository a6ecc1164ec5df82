"""Learning from labels: what a model gets to read, and what is scored."""

import dataclasses

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.family.supervise import Labelling, as_classifier
from kinfolk.layers.heads.class_head import RegressionHead
from kinfolk.layers.heads.tag_head import SpanHead, TagHead
from kinfolk.models.model import Output
from kinfolk.objectives.apart import ClassifyApart
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.supervised import Classify, ClassifyMany, Regress, SpanAnswer, Tag
from kinfolk.objectives.tasks.registry import of_labels

W = Vocabulary(40)
PAD, BOS, EOS, SEP, CLS = W.pad, W.bos, W.eos, W.sep, W.cls
APART = Labelling(2, 8, n_sequences=2, apart=True)
TOY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "vocab_size": 40, "max_len": 32, "dropout": 0.0}


def batch(first, second=None, **fields):
    """Make a batch of rows as data gives them."""

    def padded(rows):
        width = max(map(len, rows))
        keep = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
        return torch.tensor([row + [PAD] * (width - len(row)) for row in rows]), keep

    tokens, keep = padded(first)
    more = dict(zip(("source", "source_keep"), padded(second), strict=True)) if second else {}
    return Batch(index=torch.arange(len(first)), tokens=tokens, keep=keep, **more, **fields)


def labels(*values):
    return torch.tensor(values)


class Fixed:
    """A head that says what it was told to."""

    def __init__(self, logits):
        self.logits = logits

    def answer(self, hidden, keep):
        return self.logits


def output(logits):
    return Output(torch.zeros(len(logits), 1, 1, dtype=torch.float64), Fixed(logits), {}, {})


def test_one_sequence_is_read_as_it_is_or_opened():
    read = batch([[10, 11, EOS], [12, EOS]], labels=labels(0, 1))
    plain = Classify().prepare(read, Rng(0), W)
    assert plain.tokens is read.tokens
    assert plain.keep is read.keep
    assert plain.segments.tolist() == [[0, 0, 0], [0, 0, 0]]
    got = Classify(opening="cls").prepare(read, Rng(0), W)
    assert got.tokens.tolist() == [[CLS, 10, 11, EOS], [CLS, 12, EOS, PAD]]
    assert got.keep.tolist() == [[True] * 4, [True, True, True, False]]
    assert got.labels.tolist() == [0, 1]
    assert got.n_scored == 2


def test_an_encoder_decoder_reads_it_as_its_source():
    got = Classify(reads="source").prepare(batch([[10, 11, EOS], [12, EOS]], labels=labels(0, 1)), Rng(0), W)
    assert got.tokens.tolist() == [[BOS], [BOS]]
    assert got.keep is None
    assert got.source.tolist() == [[10, 11, EOS], [12, EOS, PAD]]
    assert got.source_keep.sum(1).tolist() == [3, 2]


def test_a_pair_is_one_row_in_two_segments():
    read = batch([[10, 11, EOS], [12, EOS]], [[20, EOS], [21, 22, 23, EOS]], labels=labels(0, 1))
    got = Classify(opening="cls").prepare(read, Rng(0), W)
    assert got.tokens.tolist() == [[CLS, 10, 11, SEP, 20, EOS, PAD], [CLS, 12, SEP, 21, 22, 23, EOS]]
    assert got.segments.tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]]
    assert got.keep.sum(1).tolist() == [6, 7]
    assert got.source is None


def test_between_two_texts_stand_as_many_separators_as_the_tokenizer_wants():
    read = batch([[10, 11, EOS], [12, EOS]], [[20, EOS], [21, 22, 23, EOS]], labels=labels([0, 0], [1, 2]))
    two = Vocabulary(40, between=2)
    got = SpanAnswer().prepare(read, Rng(0), two)
    assert got.tokens.tolist() == [[CLS, 10, 11, SEP, SEP, 20, EOS, PAD], [CLS, 12, SEP, SEP, 21, 22, 23, EOS]]
    assert got.segments.tolist() == [[0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1]]
    assert got.keep.sum(1).tolist() == [7, 8]
    answers = [row[a : b + 1] for row, (a, b) in zip(got.tokens.tolist(), got.labels.tolist(), strict=True)]
    assert answers == [[20], [22, 23]]


def test_segments_reach_the_embedding_of_those_who_have_them():
    for name, moves in (("bert", True), ("gpt2", False)):
        m = kf.build(kf.relative(name, size="tiny", **TOY)).eval()
        one = batch([[10, 11, 12, EOS]])
        states = [m.run(one.replace(segments=torch.tensor([row]))).hidden for row in ([0] * 4, [0, 0, 1, 1])]
        assert torch.equal(m.run(one).hidden, states[0])
        assert torch.equal(*states) != moves


def test_the_class_and_its_smoothing():
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.5, 0.0]], dtype=torch.float64)
    gold = labels(0, 2)
    prepared = batch([[10], [11]], labels=gold)
    nats = -(logits[0].log_softmax(0)[0] + logits[1].log_softmax(0)[2])
    measured = Classify().measure(output(logits), prepared)
    assert {name: (float(t), int(n)) for name, (t, n) in measured.items()} == {
        "class": (pytest.approx(float(nats)), 2),
        "accuracy": (1.0, 2),
    }
    loss = Classify().loss(output(logits), prepared)
    assert (float(loss.total), int(loss.count)) == (pytest.approx(float(nats)), 2)
    spread = -logits.log_softmax(1).mean(1).sum()
    smooth = Classify(label_smoothing=0.1).loss(output(logits), prepared)
    assert float(smooth.total) == pytest.approx(float(0.9 * nats + 0.1 * spread))


def test_classes_that_hold_together():
    logits = torch.tensor([[2.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    gold = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    prepared = batch([[10], [11]], labels=gold)
    p = logits.sigmoid()
    nats = -(gold * p.log() + (1 - gold) * (1 - p).log()).sum()
    loss = ClassifyMany().loss(output(logits), prepared)
    assert (float(loss.total), int(loss.count)) == (pytest.approx(float(nats)), 4)
    found = {name: (float(t), int(n)) for name, (t, n) in ClassifyMany().measure(output(logits), prepared).items()}
    assert found == {"class": (pytest.approx(float(nats)), 4), "accuracy": (3.0, 4), "exact-match": (1.0, 2)}


def test_a_number():
    guess = torch.tensor([1.0, -2.0], dtype=torch.float64)
    prepared = batch([[10], [11]], labels=torch.tensor([0.5, 1.0]))
    loss = Regress().loss(output(guess), prepared)
    assert (float(loss.total), int(loss.count)) == (0.25 + 9.0, 2)
    found = {name: (float(t), int(n)) for name, (t, n) in Regress().measure(output(guess), prepared).items()}
    assert found == {"squared-error": (9.25, 2), "absolute-error": (3.5, 2)}


def test_answers_are_counted_from_where_the_text_begins():
    read = batch([[10, 11, EOS], [12, EOS]], [[20, 21, 22, EOS], [23, EOS]], labels=labels([1, 2], [-1, -1]))
    got = SpanAnswer().prepare(read, Rng(0), W)
    assert got.labels.tolist() == [[5, 6], [0, 0]]
    assert got.tokens[0, 5:7].tolist() == [21, 22]
    alone = SpanAnswer().prepare(batch([[20, 21, EOS]], labels=labels([0, 1])), Rng(0), W)
    assert alone.tokens[0, 1:3].tolist() == [20, 21]
    assert alone.labels.tolist() == [[1, 2]]
    # what was cut off cannot be found
    cut = SpanAnswer().prepare(batch([[20, 21, EOS]], labels=labels([2, 3])), Rng(0), W)
    assert cut.labels.tolist() == [[0, 0]]


def test_scores_of_answers():
    begin = torch.tensor([[0.0, 3.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0], [5.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    end = torch.tensor([[0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 0.0, 2.0], [5.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    gold = labels([1, 2], [1, 2], [0, 0])
    prepared, scores = batch([[10] * 4] * 3, labels=gold), output(torch.stack([begin, end], -1))
    found = {name: float(t) for name, (t, n) in SpanAnswer().measure(scores, prepared).items() if int(n) == 3}
    nats = -sum(x[i].log_softmax(0)[gold[i, k]] for k, x in enumerate((begin, end)) for i in range(3)) / 2
    # the second answer has one of two tokens right, and two of its own
    assert found == {"span": pytest.approx(float(nats)), "exact-match": 2.0, "overlap": 2.5}
    assert float(SpanAnswer().loss(scores, prepared).total) == pytest.approx(float(nats))
    strict = SpanAnswer(threshold=5.5).measure(scores, prepared)
    assert float(strict["exact-match"][0]) == 1.0


def test_no_answer_is_chosen_where_the_opening_token_scores_best():
    """Tokens: opening, question, separator, three of the text; the question scores best and can be no answer."""
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    none, some = [5.0, 9.0, 0.0, 1.0, 2.0, 1.0], [0.0, 9.0, 0.0, 1.0, 2.0, 1.0]
    scores = torch.tensor([none, some], dtype=torch.float64)[..., None].expand(2, 6, 2)
    prepared = dataclasses.replace(batch([[10] * 6] * 2, labels=labels([0, 0], [4, 4])), segments=segments)
    assert float(SpanAnswer().measure(output(scores), prepared)["exact-match"][0]) == 2.0
    # a text is answered from where only a large lead of "no answer" prevents it
    eager = SpanAnswer(threshold=-10.0).measure(output(scores), prepared)
    strict = SpanAnswer(threshold=10.0).measure(output(scores), prepared)
    assert sorted(float(found["exact-match"][0]) for found in (eager, strict)) == [1.0, 1.0]


def test_tags_are_of_tokens():
    gold = torch.tensor([[1, IGNORE, 2, IGNORE], [0, IGNORE, IGNORE, IGNORE]])
    read = batch([[10, 11, 12, EOS], [13, EOS]], targets=gold)
    got = Tag(opening="cls").prepare(read, Rng(0), W)
    assert got.targets.tolist() == [[IGNORE, 1, IGNORE, 2, IGNORE], [IGNORE, 0, IGNORE, IGNORE, IGNORE]]
    recipe = kf.relative("bert", size="tiny", **TOY)
    m = kf.build(recipe.model.replace(head=TagHead(n_tags=3))).double()
    learn = Learner(m, Tag(opening="cls"), W)
    loss, logits = learn(got), m.run(got).logits
    assert logits.shape == (2, 5, 3)
    picked = [(0, 1, 1), (0, 3, 2), (1, 1, 0)]
    want = -sum(logits[b, i].log_softmax(0)[t] for b, i, t in picked)
    torch.testing.assert_close(loss.total, want)
    assert int(loss.count) == got.n_scored == 3
    right = sum(int(logits[b, i].argmax()) == t for b, i, t in picked)
    measured = learn.measure(got)
    assert (int(measured["accuracy"][0]), int(measured["accuracy"][1])) == (right, 3)
    torch.testing.assert_close(measured["tag"][0], want)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vanilla", "performer"])
def test_two_that_are_read_apart_never_see_each_other(name):
    recipe = as_classifier(kf.relative(name, size="tiny", **TOY), APART)
    learn = Learner(kf.build(recipe).double().eval(), recipe.objective, W)
    first, second = [[10, 11, EOS], [12, EOS]], [[20, EOS], [21, 22, 23, EOS]]
    prepared = learn.prepare(batch(first, second, labels=labels(0, 1)), Rng(0))
    output, _ = learn.run(prepared)
    assert output.logits.shape == (2, 2)
    # the verdict is made of what the model says of each sequence alone
    sides = []
    for rows in (first, second):
        for row in rows:
            one = Classify(opening=recipe.objective.opening, reads=recipe.objective.reads)
            alone = learn.model.run(one.prepare(batch([row], labels=labels(0)), Rng(0), W))
            sides.append((alone.hidden, alone.keep))
    for i in range(2):
        pair = (sides[i], sides[i + 2])
        width = max(x.shape[1] for x, _ in pair)
        x = torch.cat([torch.nn.functional.pad(x, (0, 0, 0, width - x.shape[1])) for x, _ in pair])
        keep = torch.arange(width) < torch.tensor([[x.shape[1]] for x, _ in pair])
        torch.testing.assert_close(learn.model.head.answer(x, keep)[0], output.logits[i], rtol=1e-9, atol=1e-11)
    loss = learn(prepared)
    assert int(loss.count) == 2
    loss.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learn.parameters())


def test_micro_batches_of_pairs_keep_their_partners():
    recipe = as_classifier(kf.relative("bert", size="tiny", **TOY), APART)
    learn = Learner(kf.build(recipe).double().eval(), recipe.objective, W)
    read = batch([[10, 11, EOS], [12, EOS]], [[20, EOS], [21, 22, 23, EOS]], labels=labels(0, 1))
    prepared = learn.prepare(read, Rng(0))
    whole, _ = learn.run(prepared)
    for i in range(2):
        part, _ = learn.run(prepared.rows(slice(i, i + 1)))
        torch.testing.assert_close(part.logits[0], whole.logits[i], rtol=1e-9, atol=1e-11)


def test_a_relative_answers_and_guesses():
    base = kf.relative("bert", size="tiny", **TOY)
    answers = Learner(kf.build(base.model.replace(head=SpanHead())), SpanAnswer(), W)
    read = batch([[10, 11, EOS]], [[20, 21, EOS]], labels=labels([0, 1]))
    assert answers.measure(answers.prepare(read, Rng(0)))["span"][0].isfinite()
    number = as_classifier(base, Labelling(0, task=of_labels("number")))
    assert isinstance(number.model.head, RegressionHead)
    guesses = Learner(kf.build(number), number.objective, W)
    loss = guesses(guesses.prepare(batch([[10, EOS]], labels=torch.tensor([0.3])), Rng(0)))
    loss.total.backward()
    assert loss.total.isfinite()


def test_what_is_refused():
    with pytest.raises(SpecError, match="scores labels, and this data has none"):
        Classify().prepare(batch([[10]]), Rng(0), W)
    with pytest.raises(SpecError, match="scores labels, and this data has none"):
        SpanAnswer().prepare(batch([[10]]), Rng(0), W)
    with pytest.raises(SpecError, match="scores tags of tokens"):
        Tag().prepare(batch([[10]]), Rng(0), W)
    with pytest.raises(SpecError, match="labels of pairs"):
        ClassifyApart().prepare(batch([[10]], labels=labels(1)), Rng(0), W)
    with pytest.raises(SpecError, match="opening: unknown 'clss'"):
        Classify(opening="clss")
    with pytest.raises(SpecError, match="reads: unknown"):
        Classify(reads="target")
    with pytest.raises(SpecError, match="position 0"):
        SpanAnswer(opening="none")
    with pytest.raises(SpecError, match="longest: 0"):
        SpanAnswer(longest=0)
    with pytest.raises(SpecError, match="every token needs a state of its own"):
        Tag(reads="source")
    with pytest.raises(SpecError, match="read apart"):
        as_classifier(kf.relative("bert", size="tiny"), Labelling(2, apart=True, task=of_labels("number")))
