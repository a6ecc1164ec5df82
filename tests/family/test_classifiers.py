"""Every relative as a classifier: another head and another objective, and all of this holds."""

import functools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.plain import dumps, loads
from kinfolk.core.rng import Rng
from kinfolk.family.recipe import Recipe
from kinfolk.family.supervise import Labelling, as_classifier
from kinfolk.models.cost import cost
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.tasks.registry import of_labels
from tests.cover import sampled

NAMES = [name for name in kf.relatives() if kf.about(name).input == "tokens"]
TOY = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 64, "vocab_size": 40, "max_len": 16}
V, CLASSES, LENGTH = TOY["vocab_size"], 3, 12


@functools.cache
def recipe(name):
    # a pair in one row takes more positions than the relative has
    return as_classifier(kf.relative(name, size="tiny", **TOY), Labelling(CLASSES, LENGTH, n_sequences=2))


def learner(name, dtype=torch.float64):
    """Return one away from its beginning, where biases are zero, gains one, and some stacks the identity."""
    m, g = kf.build(recipe(name), seed=1).to(dtype), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in m.parameters():
            p += 0.05 * torch.randn(p.shape, generator=g, dtype=dtype)
    return Learner(m, recipe(name).objective, Vocabulary(V))


def examples(*lengths, extra=0, filler=0, second=False):
    """Return examples as data gives them, padded by `extra` more than they need."""
    g = torch.Generator().manual_seed(3)
    width = max(lengths) + extra
    sides = []
    for _ in range(2):
        rows = torch.randint(7, V, (len(lengths), max(lengths)), generator=g)
        keep = torch.arange(width) < torch.tensor(lengths)[:, None]
        sides.append((torch.nn.functional.pad(rows, (0, extra)).where(keep, filler), keep))
    labels = torch.randint(CLASSES, (len(lengths),), generator=g)
    more = {"source": sides[1][0], "source_keep": sides[1][1]} if second else {}
    index = torch.arange(len(lengths))
    return Batch(index=index, tokens=sides[0][0], keep=sides[0][1], labels=labels, **more)


def logits(learn, batch):
    torch.manual_seed(0)
    return learn.eval().model.run(learn.prepare(batch, Rng(0))).logits


@pytest.mark.parametrize("name", sampled(NAMES, "labels"))
@pytest.mark.parametrize("second", [False, True], ids=["one", "pair"])
def test_learns_from_labels(name, second):
    learn = learner(name).train()
    batch = learn.prepare(examples(9, 12, 1, second=second), Rng(0))
    loss = learn(batch)
    assert loss.count == 3
    (loss.total / loss.count + loss.side).backward()
    for path, p in learn.named_parameters():
        assert p.grad is not None, path
        assert p.grad.isfinite().all(), path
    # a decoder of one position has nothing to choose from, so its own queries and keys may be at rest
    assert all(p.grad.abs().sum() > 0 for p in learn.model.head.parameters())
    assert any(p.grad.abs().sum() > 0 for p in learn.model.embedding.parameters())
    measures = learn.eval().measure(batch)
    assert list(measures) == ["class", "accuracy"]
    out = learn.model.run(batch).logits
    assert out.shape == (3, CLASSES)
    assert measures["accuracy"][0] == (out.argmax(1) == batch.labels).sum()
    want = -out.log_softmax(1)[torch.arange(3), batch.labels].sum()
    torch.testing.assert_close(measures["class"][0], want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", sampled(NAMES, "verdicts"))
def test_neither_padding_nor_neighbours_change_a_verdict(name):
    learn = learner(name)
    plain = logits(learn, examples(9, 12, 1))
    assert plain.std() > 1e-4
    for filler in (0, 11):
        torch.testing.assert_close(
            logits(learn, examples(9, 12, 1, extra=4, filler=filler)), plain, rtol=1e-9, atol=1e-10
        )
    for i in range(3):
        alone = logits(learn, examples(9, 12, 1).rows(slice(i, i + 1)))
        torch.testing.assert_close(alone[0], plain[i], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", sampled(NAMES, "token counts"))
def test_every_token_counts(name):
    """Changing any one token of a text changes the verdict on it: nothing is out of sight of the head."""
    learn, batch = learner(name), examples(12)
    plain = logits(learn, batch)
    for at in range(12):
        tokens = batch.tokens.clone()
        tokens[0, at] = 7 + (tokens[0, at] - 6) % (V - 7)
        assert (logits(learn, batch.replace(tokens=tokens)) - plain).abs().max() > 1e-9, at


@pytest.mark.parametrize("name", sampled(NAMES, "judging"))
def test_is_saved_counted_and_written_down(name, tmp_path):
    r, learn = recipe(name), learner(name, torch.float32)
    assert loads(Recipe, dumps(r)) == r
    assert cost(r.model, 16).params == learn.model.n_params
    again = Learner(kf.load(kf.save(learn.model, tmp_path / "m")), r.objective, Vocabulary(V))
    assert torch.equal(logits(again, examples(9, 12)), logits(learn, examples(9, 12)))


@pytest.mark.parametrize("name", sampled(NAMES, "tags"))
@pytest.mark.parametrize("labels", ["tags", "span"])
def test_judges_every_token(name, labels):
    base = kf.relative(name, size="tiny", **TOY)
    r = as_classifier(base, Labelling(CLASSES, LENGTH, n_sequences=2, task=of_labels(labels)))
    learn = Learner(kf.build(r, seed=1).double().eval(), r.objective, Vocabulary(V))
    found = []
    for extra in (0, 3):
        read = examples(9, 5, extra=extra, filler=11, second=labels == "span")
        spans = torch.tensor([[2, 4], [-1, -1]])
        tags = torch.where(read.keep, read.tokens % CLASSES, IGNORE)
        read = read.replace(labels=spans) if labels == "span" else read.replace(labels=None, targets=tags)
        torch.manual_seed(0)
        found.append(learn(learn.prepare(read, Rng(0))).total.detach())
    loss = learn.train()(learn.prepare(read, Rng(0)))
    assert loss.count == (2 if labels == "span" else 14)
    (loss.total + loss.side).backward()
    for path, p in learn.named_parameters():
        assert p.grad is not None, path
        assert p.grad.isfinite().all(), path
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
    assert cost(r.model, 16).params == learn.model.n_params


FURTHER = [pytest.param(name, marks=pytest.mark.long) for name in ("vanilla", "performer")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "transformer-xl", *FURTHER])
def test_learns_which_of_two_tokens_is_there(name):
    """One token of a row tells the class, wherever it stands; who does not look for it stays at a half."""
    r = recipe(name)
    learn = Learner(kf.build(r, seed=1), r.objective, Vocabulary(V))
    optimiser = torch.optim.AdamW(learn.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(0)

    def rows(n):
        tokens = torch.randint(10, V, (n, LENGTH), generator=g)
        labels = torch.randint(2, (n,), generator=g)
        tokens[torch.arange(n), torch.randint(LENGTH - 1, (n,), generator=g)] = 8 + labels
        tokens[:, -1] = 2
        return learn.prepare(Batch(index=torch.arange(n), tokens=tokens, labels=labels), Rng(0))

    for _ in range(300):
        loss = learn.train()(rows(32))
        optimiser.zero_grad()
        (loss.total / loss.count + loss.side).backward()
        optimiser.step()
    right, n = learn.eval().measure(rows(256))["accuracy"]
    assert right / n > 0.9
