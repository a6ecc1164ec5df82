"""Distillation against hand calculations; a student that is its teacher has nothing to learn from it."""

import math

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.objectives.distil import Distil, teacher_of
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary

TOY = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 24, "vocab_size": 20, "max_len": 16}


@pytest.fixture
def teacher(tmp_path):
    recipe = kf.relative("gpt2", size="tiny", **(TOY | {"n_layers": 2}))
    kf.save(kf.build(recipe, seed=5), tmp_path / "teacher")
    teacher_of.cache_clear()
    return tmp_path / "teacher"


def learner(teacher, seed=1, numbers=TOY, **changes):
    recipe = kf.relative("gpt2", size="tiny", **numbers)
    how = Distil(task=recipe.objective, teacher=str(teacher), **changes)
    return Learner(kf.build(recipe, seed=seed).double().train(), how, Vocabulary(20))


def batch(learn):
    tokens = torch.randint(7, 20, (2, 9), generator=torch.Generator().manual_seed(0))
    return learn.prepare(Batch(index=torch.arange(2), tokens=tokens), Rng(0))


def test_the_loss_is_the_sum_of_its_three_parts_by_hand(teacher):
    learn = learner(teacher, temperature=3.0, soft=5.0, hard=2.0, states=0.5)
    given = batch(learn)
    got = learn(given)
    whole = teacher_of(str(teacher), torch.device("cpu"), torch.float64)
    with torch.no_grad():
        s, t = learn.model.run(given), whole.run(given)
        said, heard = s.logits, t.logits
    want = 0.0
    for b in range(2):
        for i in range(given.tokens.shape[1]):
            gold = int(given.targets[b, i])
            if gold == IGNORE:
                continue
            p, q = (x[b, i].div(3.0).softmax(-1) for x in (heard, said))
            kl = sum(float(a) * math.log(float(a) / float(c)) for a, c in zip(p, q, strict=True))
            ce = -float(said[b, i].log_softmax(-1)[gold])
            hs, ht = s.hidden[b, i], t.hidden[b, i]
            cosine = float(hs @ ht / hs.norm() / ht.norm())
            want += 5.0 * 9.0 * kl + 2.0 * ce + 0.5 * (1 - cosine)
    assert float(got.total.detach()) == pytest.approx(want, rel=1e-9)
    assert got.count == (given.targets != IGNORE).sum()


def test_a_student_that_is_its_teacher_learns_nothing_from_it(teacher):
    numbers = TOY | {"n_layers": 2}
    learn = learner(teacher, seed=5, numbers=numbers, hard=0.0)
    loss = learn(batch(learn))
    assert abs(float(loss.total.detach())) < 1e-6
    loss.total.backward()
    assert max(float(p.grad.abs().max()) for p in learn.parameters() if p.grad is not None) < 1e-6


def test_the_teacher_is_not_learnt_and_not_saved(teacher):
    learn = learner(teacher)
    learn(batch(learn)).total.backward()
    whole = teacher_of(str(teacher), torch.device("cpu"), torch.float64)
    assert all(p.grad is None for p in whole.parameters())
    assert not whole.training
    assert all(name.startswith("model.") for name in learn.state_dict())


def test_evaluation_scores_the_task_alone(teacher):
    learn = learner(teacher)
    given = batch(learn)
    alone = Learner(learn.model.eval(), learn.objective.task, learn.vocabulary)
    learn.eval()
    with torch.no_grad():
        assert learn.measure(given) == alone.measure(given)
        assert torch.equal(learn(given).total, alone(given).total)


def test_states_of_other_widths_are_refused_unless_left_out(teacher):
    narrow = TOY | {"d_model": 8}
    learn = learner(teacher, numbers=narrow)
    with pytest.raises(SpecError, match="width 16"):
        learn(batch(learn))
    assert learner(teacher, numbers=narrow, states=0.0)(batch(learn)).total.isfinite()


def test_a_temperature_of_nothing_is_refused(teacher):
    with pytest.raises(SpecError, match="temperature"):
        learner(teacher, temperature=0.0)
