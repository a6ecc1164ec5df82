"""Gates of one change nothing, a closed gate is a head cut out, and gradients of gates are what they stand for."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.rng import Rng
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.use.inspect.removal import gated, gates_of, importance, removed

TOY = {"d_model": 24, "n_layers": 2, "n_heads": 3, "d_ff": 32, "vocab_size": 30, "max_len": 32}


def learner(name="gpt2"):
    recipe = kf.relative(name, size="tiny", **TOY)
    return Learner(kf.build(recipe, seed=2).double().eval(), recipe.objective, Vocabulary(30))


def batch(learn, n=3):
    tokens = torch.randint(7, 30, (n, 11), generator=torch.Generator().manual_seed(0))
    return learn.prepare(Batch(index=torch.arange(n), tokens=tokens), Rng(0))


@pytest.mark.parametrize("name", ["gpt2", "roberta", "vanilla", "performer", "local"])
def test_gates_of_one_change_nothing(name):
    learn = learner(name)
    given = batch(learn)
    before = learn.model.run(given).logits
    gates = gates_of(learn.model)
    assert sum(len(gate) for gate in gates.values()) >= 6
    with gated(learn.model, gates):
        assert torch.equal(learn.model.run(given).logits, before)
    assert torch.equal(learn.model.run(given).logits, before)


def test_a_closed_gate_is_a_head_whose_output_rows_are_zero():
    learn, other = learner(), learner()
    given = batch(learn)
    path = next(iter(gates_of(learn.model)))
    gate = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    with gated(learn.model, {path: gate}):
        got = learn.model.run(given).logits
    out = other.model.get_submodule(path).out
    out.weight.data[:, 8:16] = 0
    torch.testing.assert_close(got, other.model.run(given).logits, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(got, learn.model.run(given).logits)


def test_importance_is_the_mean_size_of_the_derivative_by_the_gate():
    learn = learner()
    given = batch(learn)
    found = importance(learn, [given])
    path = list(found)[1]
    for h in range(3):
        sizes = []
        for i in range(3):
            losses = []
            for step in (-1e-5, 1e-5):
                gate = torch.ones(3, dtype=torch.float64)
                gate[h] += step
                with gated(learn.model, {path: gate}), torch.no_grad():
                    loss = learn(given.rows(slice(i, i + 1)))
                losses.append(float(loss.total / loss.count))
            sizes.append(abs(losses[1] - losses[0]) / 2e-5)
        assert float(found[path][h]) == pytest.approx(sum(sizes) / 3, rel=1e-6)


def test_removal_is_the_loss_without_the_head():
    learn = learner()
    given = batch(learn)
    calls = []
    whole, rises = removed(learn, [given], lambda done, total: calls.append((done, total)))
    assert calls[-1] == (6, 6)
    with torch.no_grad():
        loss = learn(given)
    assert whole == pytest.approx(float(loss.total / loss.count))
    path = next(iter(rises))
    learn.model.get_submodule(path).out.weight.data[:, :8] = 0
    with torch.no_grad():
        loss = learn(given)
    assert float(rises[path][0]) == pytest.approx(float(loss.total / loss.count) - whole, abs=1e-12)
