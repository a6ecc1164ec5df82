"""Which tokens a generator replaced: labels, losses, what is shared, and what a run keeps of it."""

import functools

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.replaced import draw

TOY = {"d_model": 24, "n_layers": 2, "n_heads": 3, "d_ff": 40, "vocab_size": 37, "max_len": 32, "dropout": 0.0}
V = Vocabulary(37)


def learner(seed=0, **numbers):
    recipe = kf.relative("electra", size="base", **TOY | numbers)
    return Learner(kf.build(recipe, seed).double(), recipe.objective, V, seed).double()


@functools.cache
def read(n=4, length=20):
    draw = torch.Generator().manual_seed(1)
    return Batch(index=torch.arange(n), tokens=torch.randint(7, 37, (n, length + 1), generator=draw))


def test_labels_say_where_a_token_differs_and_nowhere_else():
    learn, text = learner(), read(60, 30)
    batch = learn.prepare(text, Rng(0))
    _, made = learn.run(batch)
    chosen, before = batch.targets != IGNORE, text.tokens[:, :-1]
    assert torch.equal(made.tokens[~chosen], before[~chosen])
    assert torch.equal(made.targets, (made.tokens != before).long())
    # of 240 or so draws from thirty tokens some are what was there
    assert 0 < (made.targets[chosen] == 0).sum() < chosen.sum() / 2
    # 85 of 100 are hidden, the others stand as they are
    shown = torch.cat(
        [learn.prepare(read().replace(index=torch.arange(4) + 4 * i), Rng(0)).tokens[:, :, None] for i in range(300)], 2
    )
    hidden = (shown == V.mask).double().mean()
    assert abs(hidden - 0.15 * 0.85) < 0.01


def test_a_generator_that_copies_replaces_nothing():
    learn = learner()
    batch = learn.prepare(read(), Rng(0))
    gold = torch.where(batch.targets != IGNORE, batch.targets, 0)

    class Copies(torch.nn.Module):
        weight = torch.zeros(37, 1)

        def logits(self, x):
            return 1e4 * torch.nn.functional.one_hot(gold[batch.targets != IGNORE], 37).double()

        def loss(self, x, targets):
            return x.sum() * 0

    learn.partner.head = Copies()
    output, made = learn.run(batch)
    assert made.targets.sum() == 0
    score = output.logits[..., 1]
    loss = learn.objective.loss(output, made)
    torch.testing.assert_close(loss.total / loss.count, 50 * torch.nn.functional.softplus(score).mean())


def test_the_loss_is_the_mean_of_one_and_fifty_times_the_mean_of_the_other():
    learn = learner()
    keep = torch.arange(21) < torch.tensor([[21], [15], [21], [9]])
    batch = learn.prepare(read().replace(keep=keep, tokens=read().tokens.where(keep, 0)), Rng(0))
    output, made = learn.run(batch)
    loss = learn(batch)
    said = learn.partner.run(batch)
    chosen = batch.targets != IGNORE
    generator = torch.nn.functional.cross_entropy(said.logits[chosen], batch.targets[chosen])
    z, real = output.logits[..., 1], batch.keep
    detector = torch.nn.functional.binary_cross_entropy_with_logits(z[real], made.targets[real].double())
    torch.testing.assert_close(loss.total / loss.count + loss.side, generator + 50 * detector)
    assert loss.count == real.sum()
    measured = learn.measure(batch)
    torch.testing.assert_close(measured["replaced-token"][0] / measured["replaced-token"][1], detector.detach())
    torch.testing.assert_close(measured["generator-token"][0] / measured["generator-token"][1], generator.detach())


def test_nothing_is_learnt_through_the_draw():
    learn = learner()
    batch = learn.prepare(read(), Rng(0))
    learn(batch).total.backward()
    assert all(p.grad is None for name, p in learn.named_parameters() if name.startswith("partner."))
    learn.zero_grad()
    learn(batch).side.backward()
    assert all(p.grad is None for name, p in learn.named_parameters() if name.startswith("model.encoder"))


@pytest.mark.parametrize("d_inner", [0, 16])
def test_the_embedding_is_shared_and_counted_once(d_inner):
    learn = learner(d_inner=d_inner)
    inner = learn.model.embedding.inner if d_inner else learn.model.embedding
    assert learn.partner.embedding.inner is inner
    assert learn.partner.head.weight is inner.weight
    names = [name for name, _ in learn.named_parameters()]
    assert not any("partner.embedding.inner" in name for name in names)
    batch = learn.prepare(read(), Rng(0))
    before = learn.partner.run(batch).logits
    with torch.no_grad():
        inner.table.weight += 0.1
    assert not torch.equal(learn.partner.run(batch).logits, before)


def test_draws_follow_the_probabilities_and_the_example_alone():
    class Head(torch.nn.Module):
        weight = torch.zeros(3, 1)

        def logits(self, x):
            return torch.tensor([0.5, 0.2, 0.3]).log().expand(len(x), 3)

    lots = torch.linspace(0, 1, 1001)[:-1]
    counts = draw(Head(), torch.zeros(1000, 1), lots).bincount(minlength=3)
    assert counts.tolist() == pytest.approx([500, 200, 300], abs=2)
    learn = learner()
    whole = learn.run(learn.prepare(read(), Rng(0)))[1]
    alone = [learn.run(learn.prepare(read().rows(slice(i, i + 1)), Rng(0)))[1] for i in range(4)]
    assert torch.equal(whole.tokens, torch.cat([x.tokens for x in alone]))
    assert torch.equal(whole.targets, torch.cat([x.targets for x in alone]))


def test_the_seed_draws_the_generator():
    weights = [dict(learner(seed).named_parameters())["partner.embedding.outer.weight"] for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_refusals():
    recipe = kf.relative("electra", size="base", **TOY)
    other = recipe.objective.generator.replace(embedding=recipe.model.embedding)
    with pytest.raises(SpecError, match="must be 'projected'"):
        Learner(kf.build(recipe), recipe.objective.replace(generator=other), V)
    wide = kf.relative("electra", size="base", **TOY | {"d_model": 30}).objective
    with pytest.raises(SpecError, match="30 is not the width of the model's embedding, 24"):
        Learner(kf.build(recipe), wide, V)
    with pytest.raises(SpecError, match="shrink: 0"):
        kf.relative("electra", size="base", shrink=0)


def toy_recipe(steps):
    small = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "vocab_size": 263, "max_len": 32}
    training = {"steps": steps, "batch_size": 4, "length": 24, "eval_every": 4, "eval_batches": 2, "save_every": 2}
    changes = {f"training.{k}": v for k, v in (training | {"precision": "fp32", "compile": "off"}).items()}
    return kf.relative("electra", size="tiny", **small, **changes)


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been_and_leaves_the_discriminator(tmp_path, monkeypatch):
    from kinfolk.data import open_data
    from kinfolk.runs.options import RunOptions
    from kinfolk.runs.run import Run
    from kinfolk.train import loop
    from kinfolk.train.run import resume, train

    data, options = open_data("stdlib:megabytes=1"), RunOptions(quiet=True, tensorboard=False)
    train(toy_recipe(6), data, tmp_path / "whole", options=options)
    update = loop.Session.update

    class KilledError(Exception):
        pass

    def dies(self, stop):
        if self.counters.step == 3:
            raise KilledError
        return update(self, stop)

    monkeypatch.setattr(loop.Session, "update", dies)
    with pytest.raises(KilledError):
        train(toy_recipe(6), data, tmp_path / "again", options=options)
    monkeypatch.setattr(loop.Session, "update", update)
    resume(tmp_path / "again", data=data)
    whole, again = (Run.open(tmp_path / name) for name in ("whole", "again"))
    recipe, whole, again = whole.recipe, whole.learner(), again.learner()
    fresh = Learner(kf.build(recipe, 0), recipe.objective, V, 0).state_dict()
    assert any(name.startswith("partner.") for name in whole.state_dict())
    for name, x in whole.state_dict().items():
        assert torch.equal(x, again.state_dict()[name]), name
    changed = [name for name, x in whole.state_dict().items() if not torch.equal(x, fresh[name])]
    assert any(name.startswith("partner.encoder") for name in changed)
    left = kf.load(tmp_path / "whole")
    assert left.head.n_scores == 2
    assert set(left.state_dict()) == set(whole.model.state_dict())
