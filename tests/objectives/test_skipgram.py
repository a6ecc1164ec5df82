"""Words from words around them: pairs and losses by hand, and the optimum that theory knows."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import kinfolk as kf
from kinfolk.core.annotations import NegativeSamples
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.skipgram import SkipGram

V = 10
VOCABULARY = Vocabulary(V)  # three words: 7, 8, 9
TOY = {"d_model": 3, "vocab_size": V, "max_len": 8}


def negatives(batch):
    return batch.annotation(NegativeSamples).tokens_BLC


def learner(objective=None):
    recipe = kf.relative("word2vec", size="base", **TOY)
    learn = Learner(kf.build(recipe).double(), objective or recipe.objective, VOCABULARY)
    torch.manual_seed(0)
    for p in learn.parameters():
        torch.nn.init.normal_(p)
    return learn


def test_pairs_by_hand():
    row = np.array([10, 11, 12, 13])
    words, contexts = SkipGram(window=1, threshold=0).pairs(row, Rng(0).example(0), Vocabulary(20))
    assert list(zip(words.tolist(), contexts.tolist(), strict=True)) == [
        (10, 11),
        (11, 10),
        (11, 12),
        (12, 11),
        (12, 13),
        (13, 12),
    ]
    near = np.zeros(4)
    for i in range(400):
        words, contexts = SkipGram(window=3, threshold=0).pairs(row, Rng(0).example(i), Vocabulary(20))
        for away in (contexts - words)[words == 10]:
            near[away] += 1
    # one word away always, two in two of three draws, three in one of three
    assert near[1] == 400
    assert near[2] == pytest.approx(400 * 2 / 3, abs=30)
    assert near[3] == pytest.approx(400 / 3, abs=30)


def test_loss_and_gradient_by_hand_on_a_corpus_of_three_words():
    learn = learner()
    words, contexts, others = [[7, 8, 9]], [[8, 9, IGNORE]], [[[9, 9], [7, 8], [7, 7]]]
    batch = Batch(
        index=torch.arange(1),
        tokens=torch.tensor(words),
        targets=torch.tensor(contexts),
        annotations=(NegativeSamples(torch.tensor(others)),),
    )
    v = learn.model.embedding.table.weight.detach().clone().requires_grad_()
    u = learn.model.head.weight.detach().clone().requires_grad_()
    want = torch.zeros((), dtype=torch.float64)
    for i in range(2):
        word = v[words[0][i]]
        want = want - torch.log(1 / (1 + torch.exp(-(u[contexts[0][i]] @ word))))
        for other in others[0][i]:
            want = want - torch.log(1 / (1 + torch.exp(u[other] @ word)))
    want.backward()
    loss = learn(batch)
    loss.total.backward()
    torch.testing.assert_close(loss.total, want)
    assert loss.count == 2
    torch.testing.assert_close(learn.model.embedding.table.weight.grad, v.grad)
    torch.testing.assert_close(learn.model.head.weight.grad, u.grad)
    total, count = learn.measure(batch)["skip-gram"]
    torch.testing.assert_close(total, want.detach())
    assert count == 2


def test_others_are_drawn_by_counts_and_frequent_words_are_left_out():
    counts = np.zeros(V, dtype=np.int64)
    counts[:3], counts[7:] = 1000, [16, 81, 256]
    vocabulary = dataclasses.replace(VOCABULARY, counts=counts)
    noise = SkipGram().noise(vocabulary)
    assert noise.tolist() == pytest.approx([0] * 7 + [8, 27, 64])
    read = Batch(index=torch.arange(40), tokens=torch.randint(7, 10, (40, 50)))
    made = SkipGram(threshold=0).prepare(read, Rng(0), vocabulary)
    drawn = negatives(made)[made.targets != IGNORE].flatten().bincount(minlength=V)[7:].double()
    assert (drawn / drawn.sum()).tolist() == pytest.approx([8 / 99, 27 / 99, 64 / 99], abs=0.01)
    # sqrt(t/f) + t/f of the words stay
    t, share = 0.01, counts[7:] / counts[7:].sum()
    stays = np.sqrt(t / share) + t / share
    kept = np.zeros(3)
    for i in range(300):
        words, _ = SkipGram(window=1, threshold=t).pairs(np.repeat([7, 8, 9], 100), Rng(0).example(i), vocabulary)
        kept += np.bincount(words, minlength=V)[7:]
    # a word in the middle has two contexts
    assert (kept / 2 / 300 / 100).tolist() == pytest.approx(np.minimum(1, stays).tolist(), abs=0.02)


def test_the_optimum_is_the_pointwise_mutual_information():
    """Levy and Goldberg 2014: with vectors wide enough, v.u = PMI(w, c) - log k, if others are drawn as they occur."""
    joint = np.array([[6.0, 2.0, 1.0], [2.0, 1.0, 4.0], [1.0, 4.0, 3.0]])
    joint /= joint.sum()
    word, context, k = joint.sum(1), joint.sum(0), 2
    recipe = kf.relative("word2vec", size="base", **TOY)
    model = kf.build(recipe).double()
    learn = Learner(model, SkipGram(n_negative=k), VOCABULARY)
    optimiser = torch.optim.LBFGS(learn.parameters(), max_iter=500, line_search_fn="strong_wolfe")
    # every pair with every two others, weighted by how likely that is
    cases = [(w, c, a, b) for w in range(3) for c in range(3) for a in range(3) for b in range(3)]
    weights = torch.tensor([joint[w, c] * context[a] * context[b] for w, c, a, b in cases])
    at = torch.tensor(cases) + 7

    def objective():
        optimiser.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for (w, c, a, b), weight in zip(at, weights, strict=True):
            batch = Batch(
                index=torch.arange(1),
                tokens=w.view(1, 1),
                targets=c.view(1, 1),
                annotations=(NegativeSamples(torch.stack([a, b]).view(1, 1, 2)),),
            )
            total = total + weight * learn(batch).total
        total.backward()
        return total

    torch.manual_seed(0)
    for p in learn.parameters():
        torch.nn.init.normal_(p, std=0.5)
    optimiser.step(objective)
    scores = (model.embedding.table.weight[7:] @ model.head.weight[7:].T).detach()
    want = torch.from_numpy(np.log(joint / np.outer(word, context))) - math.log(k)
    torch.testing.assert_close(scores, want, rtol=0, atol=1e-3)


def test_draws_depend_on_the_seed_and_the_example_only():
    read = Batch(index=torch.arange(4), tokens=torch.randint(7, 10, (4, 21)))
    made = SkipGram().prepare(read, Rng(0), VOCABULARY)
    alone = SkipGram().prepare(read.rows(slice(2, 3)), Rng(0), VOCABULARY)
    n = alone.tokens.shape[1]
    assert torch.equal(made.targets[2, :n], alone.targets[0])
    assert torch.equal(negatives(made)[2, :n], negatives(alone)[0])
    assert (made.targets[2, n:] == IGNORE).all()


def test_a_word_is_the_same_wherever_it_stands():
    model = kf.build(kf.relative("word2vec", size="base", **TOY))
    a, b = model(torch.tensor([[7, 8, 9]])).hidden, model(torch.tensor([[9, 8, 7]])).hidden
    assert torch.equal(a[0, 1], b[0, 1])
    assert torch.equal(a[0, 0], b[0, 2])


def test_counts_of_a_text():
    from kinfolk.data import open_data
    from kinfolk.runs.vocabulary import counted, vocabulary_of

    data = open_data("stdlib:megabytes=1")
    split = data.split("train")
    counts = counted(vocabulary_of(data.tokenizer), data).counts
    assert counts.sum() == split.n_tokens
    assert counts[data.tokenizer.bos] == len(split)
    pairs = open_data("copy")
    assert counted(vocabulary_of(pairs.tokenizer), pairs).counts is None


def test_refusals():
    with pytest.raises(SpecError, match="window: 0"):
        SkipGram(window=0)
    with pytest.raises(SpecError, match="n_negative: 0"):
        SkipGram(n_negative=0)
