"""TinyBERT's losses against hand calculations; the stages of it; classes and numbers that are taught."""

import math

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.family.supervise import Labelling, judging
from kinfolk.objectives.distil import Distil, teacher_of
from kinfolk.objectives.imitate import Imitate, teachers
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.objectives.tasks.registry import of_labels

TOY = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 12, "vocab_size": 20, "max_len": 16, "dropout": 0.0}
WIDE = TOY | {"d_model": 16, "n_layers": 4}


def saved(folder, name="gpt2", seed=5, **numbers):
    recipe = kf.relative(name, size="tiny", **(WIDE | numbers))
    kf.save(kf.build(recipe, seed=seed), folder)
    teacher_of.cache_clear()
    return str(folder)


def learner(teacher, name="gpt2", numbers=TOY, seed=1, **changes):
    recipe = kf.relative(name, size="tiny", **numbers)
    how = Imitate(task=recipe.objective, teacher=teacher, **changes)
    return Learner(kf.build(recipe, seed=seed).double().train(), how, Vocabulary(20))


def batch(learn, lengths=(9, 9)):
    tokens = torch.randint(7, 20, (2, 9), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(9) < torch.tensor(lengths)[:, None]
    given = Batch(index=torch.arange(2), tokens=tokens, keep=None if min(lengths) == 9 else keep)
    return learn.prepare(given, Rng(0))


def test_each_layer_has_its_teacher():
    assert teachers(4, 12) == [2, 5, 8, 11]
    assert teachers(6, 12) == [1, 3, 5, 7, 9, 11]
    assert teachers(3, 3) == [0, 1, 2]
    assert teachers(1, 5) == [4]


@pytest.mark.parametrize("part", ["embedding", "layers", "attention"])
def test_each_loss_is_that_by_hand(tmp_path, part):
    folder = saved(tmp_path / "t")
    weights = {name: 2.5 if name == part else 0.0 for name in ("embedding", "layers", "attention")}
    learn = learner(folder, **weights)
    torch.nn.init.normal_(learn.partner.map.weight, generator=torch.Generator().manual_seed(0))
    given = batch(learn)
    got = learn(given)
    teacher = teacher_of(folder, torch.device("cpu"), torch.float64)
    want = {"embedding": embedding, "layers": layers, "attention": attention}[part](learn, teacher, given)
    assert float(got.side.detach()) == pytest.approx(2.5 * want, rel=1e-9)
    assert float(got.total.detach()) == 0.0
    got.side.backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in learn.model.parameters())
    assert all(p.grad is None for p in teacher.parameters())


def square(a, b):
    pairs = list(zip(a.flatten().tolist(), b.flatten().tolist(), strict=True))
    return sum((x - y) ** 2 for x, y in pairs) / len(pairs)


def embedding(learn, teacher, given):
    with torch.no_grad():
        places = torch.arange(given.tokens.shape[1])
        mine = learn.model.embedding.table.weight[given.tokens] + learn.model.embedding.position.table.weight[places]
        its = teacher.embedding.table.weight[given.tokens] + teacher.embedding.position.table.weight[places]
        return square(mine @ learn.partner.map.weight.mT + learn.partner.map.bias, its)


def layers(learn, teacher, given):
    with torch.no_grad():
        mine, its = (m.run(given, taps=("hidden",)).taps for m in (learn.model, teacher))
        rows = [(mine[f"decoder.{m}.hidden"], its[f"decoder.{g}.hidden"]) for m, g in ((0, 1), (1, 3))]
        return sum(square(a @ learn.partner.map.weight.mT + learn.partner.map.bias, b) for a, b in rows)


def attention(learn, teacher, given):
    total = 0.0
    for m, g in ((0, 1), (1, 3)):
        mine, its = (scores(model, n, given) for model, n in ((learn.model, m), (teacher, g)))
        total += square(mine, its)
    return total


def scores(model, layer, given):
    """Make queries and keys from what goes into a layer, and their products where a key may be seen."""
    seen = []
    handle = model.decoder.blocks[layer].parts[0].qkv.register_forward_hook(lambda m, x, y: seen.append(y))
    with torch.no_grad():
        model.run(given)
    handle.remove()
    d_head = seen[0].shape[-1] // 6
    q, k, _ = seen[0].unflatten(-1, (3, 2, d_head)).unbind(2)
    found = torch.einsum("blhk,bmhk->bhlm", q, k) / math.sqrt(d_head)
    return found.tril()


def test_padding_counts_for_nothing(tmp_path):
    learn = learner(saved(tmp_path / "t", "roberta"), "roberta", attention=0.0, embedding=0.0)
    given = batch(learn, (9, 5))
    losses = []
    for token in (8, 15):
        tokens = given.tokens.masked_fill(~given.keep, token)
        losses.append(float(learn(given.replace(tokens=tokens)).side.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert losses[0] > 0


@pytest.mark.parametrize("name", ["gpt2", "vanilla"])
def test_a_student_that_is_its_teacher_has_nothing_to_imitate(tmp_path, name):
    folder = saved(tmp_path / "t", name)
    learn = learner(folder, name, WIDE, seed=5)
    loss = learn(batch(learn))
    assert float(loss.side.detach()) == pytest.approx(0.0, abs=1e-12)
    other = learner(folder, name, WIDE, seed=6)
    assert float(other(batch(other)).side.detach()) > 1e-3


def test_what_is_inside_comes_first_and_what_is_said_after_it(tmp_path):
    learn = learner(saved(tmp_path / "t"), inside=0.4)
    given = batch(learn)
    inside = learn(given)
    learn.at_progress(0.5)
    outside = learn(given)
    assert float(inside.total.detach()) == 0.0 < float(outside.total.detach())
    assert float(outside.side.detach()) == 0.0 < float(inside.side.detach())
    # the teacher's probabilities as they are, and nothing of the targets
    soft = Distil(task=learn.objective.task, teacher=learn.objective.teacher, temperature=1, soft=1, hard=0, states=0)
    alone = Learner(learn.model, soft, Vocabulary(20))
    torch.testing.assert_close(outside.total, alone(given).total)
    (outside.total + outside.side).backward()
    assert all(p.grad is not None for p in learn.parameters())


def test_evaluation_knows_nothing_of_it(tmp_path):
    learn = learner(saved(tmp_path / "t"))
    given = batch(learn)
    alone = Learner(learn.model.eval(), learn.objective.task, learn.vocabulary)
    learn.eval()
    assert float(learn(given).total.detach()) == float(alone(given).total.detach()) > 0


def test_what_cannot_be_compared_is_refused(tmp_path):
    folder = saved(tmp_path / "t", n_heads=4)
    learn = learner(folder)
    with pytest.raises(SpecError, match="2 heads"):
        learn(batch(learn))
    assert learner(folder, attention=0.0)(batch(learn)).side.isfinite()
    other = learner(saved(tmp_path / "r", "roberta"), numbers=TOY, attention=0.0, embedding=0.0)
    with pytest.raises(SpecError, match="topolog"):
        other(batch(other))
    with pytest.raises(SpecError, match=r"inside: 1.5 is not allowed; at least 0 and at most 1"):
        learner(folder, inside=1.5)


def labelled(kind, teacher=None, seed=1, **changes):
    recipe = kf.relative("roberta", size="tiny", **TOY)
    recipe = judging(recipe, Labelling(n_classes=3, length=9, task=of_labels(kind)))
    task = recipe.objective
    how = task if teacher is None else Distil(task=task, teacher=teacher, **changes)
    return recipe, Learner(kf.build(recipe, seed=seed).double().train(), how, Vocabulary(20))


def examples(learn, labels):
    tokens = torch.randint(7, 20, (2, 9), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(9) < torch.tensor([[9], [6]])
    return learn.prepare(Batch(index=torch.arange(2), tokens=tokens, keep=keep, labels=labels), Rng(0))


def test_classes_are_taught_by_hand(tmp_path):
    recipe, alone = labelled("class")
    kf.save(kf.build(recipe, seed=5), tmp_path / "t")
    _, learn = labelled("class", str(tmp_path / "t"), temperature=2.0, soft=5.0, hard=2.0, states=0.5)
    given = examples(learn, torch.tensor([2, 0]))
    got = learn(given)
    teacher = teacher_of(str(tmp_path / "t"), torch.device("cpu"), torch.float64)
    with torch.no_grad():
        s, t = learn.model.run(given), teacher.run(given)
        want = 2.0 * float(alone(given).total)
        for b in range(2):
            p, q = (x.logits[b].div(2.0).softmax(-1).tolist() for x in (t, s))
            want += 5.0 * 4.0 * sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
            n = int(given.keep[b].sum())
            pairs = [(s.hidden[b, i], t.hidden[b, i]) for i in range(n)]
            want += 0.5 * sum(1 - float(x @ y / x.norm() / y.norm()) for x, y in pairs) / n
    assert float(got.total.detach()) == pytest.approx(want, rel=1e-9)
    assert int(got.count) == 2


def test_numbers_are_taught_by_their_distance(tmp_path):
    recipe, _ = labelled("number")
    kf.save(kf.build(recipe, seed=5), tmp_path / "t")
    _, learn = labelled("number", str(tmp_path / "t"), soft=3.0, hard=0.0, states=0.0)
    given = examples(learn, torch.tensor([0.5, 1.5]))
    teacher = teacher_of(str(tmp_path / "t"), torch.device("cpu"), torch.float64)
    with torch.no_grad():
        apart = learn.model.run(given).logits - teacher.run(given).logits
    assert float(learn(given).total.detach()) == pytest.approx(3.0 * float(apart.square().sum()), rel=1e-9)
