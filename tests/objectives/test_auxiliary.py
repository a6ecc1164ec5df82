"""Losses beside the main one: when they end, what they score, and what they leave alone."""

import pytest
import torch

import kinfolk as kf
from kinfolk.core.batch import IGNORE, Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.rng import Rng
from kinfolk.models.cost import cost
from kinfolk.objectives.auxiliary import Auxiliary
from kinfolk.objectives.causal import CausalLM
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary

TOY = {"d_model": 16, "n_layers": 4, "n_heads": 2, "d_ff": 24, "vocab_size": 31, "max_len": 16, "dropout": 0.0}
V = 31


def learner(**changes):
    recipe = kf.relative("al-rfou", size="base", **TOY)
    objective = recipe.objective.replace(**changes)
    learn = Learner(kf.build(recipe).double(), objective, Vocabulary(V)).train()
    torch.manual_seed(0)
    for p in learn.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return learn


def prepared(learn, document=None):
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(7, V, (3, 13), generator=draw)
    return learn.prepare(Batch(index=torch.arange(3), tokens=tokens, document=document), Rng(0))


@pytest.mark.parametrize(
    ("progress", "layers"),
    [(0.0, [1, 2, 3]), (0.1, [1, 2, 3]), (0.2, [2, 3]), (0.3, [3]), (0.4, []), (0.5, []), (0.6, []), (1.0, [])],
)
def test_which_layers_are_asked_when(progress, layers):
    learn = learner()
    learn.at_progress(progress)
    output, _ = learn.run(prepared(learn))
    assert [name for name in output.side_losses if name.startswith("layer")] == [f"layer {n}" for n in layers]


def test_after_half_time_it_is_the_main_loss_and_half_of_the_second_target():
    learn = learner()
    learn.at_progress(0.5)
    batch = prepared(learn)
    loss = learn(batch)
    hidden = learn.model.run(batch).hidden
    main = torch.nn.functional.cross_entropy(learn.model.head.logits(hidden).flatten(0, 1), batch.targets.flatten())
    second = learn.partner.heads[0].logits(hidden[:, :-1]).flatten(0, 1)
    extra = torch.nn.functional.cross_entropy(second, batch.targets[:, 1:].flatten())
    torch.testing.assert_close(loss.total / loss.count + loss.side, main + 0.5 * extra)


def test_a_lower_layer_is_scored_by_the_same_output_layer_and_moves_nothing_above_it():
    learn = learner(n_targets=1)
    batch = prepared(learn)
    output, _ = learn.run(batch)
    states = learn.model.run(batch, taps=["hidden"]).taps["decoder.1.hidden"]
    want = torch.nn.functional.cross_entropy(learn.model.head.logits(states).flatten(0, 1), batch.targets.flatten())
    torch.testing.assert_close(output.side_losses["layer 2"], want)
    output.side_losses["layer 2"].backward()
    moved = [any(p.grad is not None for p in block.parameters()) for block in learn.model.decoder.blocks]
    assert moved == [True, True, False, False]
    assert learn.partner is None


def test_further_targets_stay_in_their_document():
    learn = learner(n_targets=3, layer_weight=0.0)
    document = torch.tensor([[0] * 5 + [1] * 8] * 3)
    batch = prepared(learn, document)
    output, _ = learn.run(batch)
    hidden = learn.model.run(batch).hidden
    assert list(output.side_losses) == ["target 2", "target 3"]
    logits = learn.partner.heads[1].logits(hidden)
    # the first document has 5 tokens, 4 of them predicted; the third next is known to the first two of those
    scored = [(row, i) for row in range(3) for i in range(12) if (i + 3 <= 4 if i < 5 else i + 3 <= 12)]
    whole = torch.cat([batch.tokens, batch.targets[:, -1:]], 1)
    nats = [torch.nn.functional.cross_entropy(logits[row, i], whole[row, i + 3]) for row, i in scored]
    torch.testing.assert_close(output.side_losses["target 3"], 0.5 * torch.stack(nats).mean())


def test_the_last_position_alone():
    learn = learner(positions="last", n_targets=1, layer_weight=0.0)
    batch = prepared(learn)
    _, seen = learn.run(batch)
    assert ((seen.targets != IGNORE).sum(1) == 1).all()
    assert torch.equal(seen.targets[:, -1], batch.targets[:, -1])
    assert learn(batch).count == 3


def test_nothing_is_added_to_the_plain_objective_with_no_weight_and_in_evaluation():
    learn = learner(n_targets=1, layer_weight=0.0)
    plain = Learner(learn.model, CausalLM(), Vocabulary(V)).train()
    batch = prepared(learn)
    assert torch.equal(learn(batch).total, plain(batch).total)
    assert learn(batch).side == 0
    full = learner()
    full.eval()
    measured = full.measure(batch)
    want = Learner(full.model, CausalLM(), Vocabulary(V)).eval().measure(batch)
    assert measured == want


def test_the_run_tells_how_far_it_is():
    from kinfolk.optim.training import Training
    from kinfolk.train.parallel import Team
    from kinfolk.train.step import Stepper

    learn = learner().float()
    training = Training(batch_size=3, length=12)
    stepper = Stepper(learn, training.optimiser.build(learn), training, 0, Team())
    stages = []
    for step in range(1, 9):
        stepper.update(prepared(learn), step, 8)
        stages.append(learn.stage)
    assert stages == [0, 1, 2, 3, 3, 3, 3, 3]


def test_positions_are_told_again_in_every_layer():
    model = kf.build(kf.relative("al-rfou", size="base", **TOY)).double()
    tables = model.decoder.position.tables
    assert len(tables) == 4
    t = torch.randint(7, V, (1, 8), generator=torch.Generator().manual_seed(1))
    before = model(t, taps=True)
    with torch.no_grad():
        tables[3].table.weight += torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    after = model(t, taps=True)
    assert not torch.equal(after.hidden, before.hidden)
    assert torch.equal(after.taps["decoder.2.hidden"], before.taps["decoder.2.hidden"])
    with pytest.raises(kf.KinfolkError, match="position 16 is beyond"):
        model(torch.full((1, 17), 8))


@pytest.mark.parametrize(("n_layers", "millions"), [(12, 41), (64, 219)])
def test_the_size_is_that_of_the_paper(n_layers, millions):
    # 44 and 235 million with the output layers that are only for training
    params = cost(kf.relative("al-rfou", size="base", n_layers=n_layers).model, 512).params
    assert round(params / 1e6) == millions


def test_refusals():
    with pytest.raises(SpecError, match="did you mean 'every'"):
        Auxiliary(of=CausalLM(), positions="evry")
    with pytest.raises(SpecError, match="n_targets: 0"):
        Auxiliary(of=CausalLM(), n_targets=0)
