import importlib

import pytest
import torch

from kinfolk.bench import attention, generate, peers, train
from kinfolk.bench.contest import OURS, SUBJECTS, BenchContestant
from kinfolk.bench.lean import LeanGPT
from kinfolk.core.cost import Shape
from kinfolk.family.building import build
from kinfolk.layers.module import Dims

TOY = {"d_model": 32, "n_layers": 2, "n_heads": 2, "d_ff": 64, "vocab_size": 50, "max_len": 12, "length": 12}
TOY |= {"batch_size": 3, "prompt": 4, "new": 5, "steps": 1}
GPT, VANILLA = TOY | {"relative": "gpt2"}, TOY | {"relative": "vanilla"}
CASES = [
    (train, contest, who, sizes)
    for contest, sizes in zip(train.contests(), (GPT, VANILLA), strict=True)
    for who in contest.contestants
]


def name_of(value):
    return value.name if isinstance(value, BenchContestant) else None


@pytest.fixture(autouse=True)
def undisturbed():
    """The steps of ours leave PyTorch deterministic, as a run does."""
    yield
    torch.use_deterministic_algorithms(False)


def installed(contestant):
    if contestant.missing:
        pytest.skip(contestant.missing)


@pytest.mark.parametrize(("subject", "contest", "who", "sizes"), CASES, ids=name_of)
def test_every_trainer_learns_the_same_batch_with_as_many_parameters(subject, contest, who, sizes):
    installed(who)
    work = subject.prepare(who, sizes)
    losses = [work.step() for _ in range(8)]
    assert losses[-1] < losses[0]
    n_ours = build(train.recipe_of(sizes)).n_params
    # x-transformers has no biases in attention
    assert work.parameters == pytest.approx(n_ours, rel=0.05 if who.how == "x-transformers" else 0)
    assert work.units == 3 * 12 * (2 if sizes is VANILLA else 1)
    assert work.flops > 6 * 0.9 * n_ours * 3 * 12 / 2


def test_the_lean_gpt_is_ours():
    torch.manual_seed(0)
    numbers = {name: GPT[name] for name in train.NUMBERS}
    ours, lean = build(train.recipe_of(GPT)).double(), LeanGPT(**numbers).double()
    pairs = [(ours.embedding.table, lean.tokens), (ours.embedding.position.table, lean.positions)]
    pairs.append((ours.decoder.norm, lean.norm))
    for mine, theirs in zip(ours.decoder.blocks, lean.blocks, strict=True):
        pairs += [(mine.residuals[0].norm, theirs.norm_1), (mine.residuals[1].norm, theirs.norm_2)]
        pairs += [(mine.parts[0].qkv, theirs.qkv), (mine.parts[0].out, theirs.out)]
        pairs += [(mine.parts[1].widen, theirs.widen), (mine.parts[1].narrow, theirs.narrow)]
    for mine, theirs in pairs:
        for field, value in theirs.named_parameters(recurse=False):
            # away from what it starts as, or a bias would not be seen
            torch.nn.init.normal_(value, std=0.2)
            getattr(mine, field).data = value.data.clone()
    tokens = torch.randint(50, (3, 13))
    want = lean(tokens[:, :-1], tokens[:, 1:])
    got = ours.head.loss(ours(tokens[:, :-1]).hidden, tokens[:, 1:]) / (3 * 12)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=0)
    got.backward()
    want.backward()
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.weight.grad, theirs.weight.grad, rtol=1e-7, atol=1e-10)


def test_torchs_transformer_is_causal_and_reads_its_source():
    torch.manual_seed(0)
    model = peers.TorchTransformer(VANILLA)
    source, tokens = torch.randint(50, (1, 12)), torch.randint(50, (1, 12))
    later, other = tokens.clone(), source.clone()
    later[0, 7], other[0, 3] = (tokens[0, 7] + 1) % 50, (source[0, 3] + 1) % 50
    before, after = model(source, tokens), model(source, later)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])
    assert not torch.allclose(before, model(other, tokens))


@pytest.mark.parametrize("who", generate.contests()[0].contestants, ids=name_of)
def test_every_generator_makes_all_its_tokens(who):
    installed(who)
    work = generate.prepare(who, GPT)
    assert work.step() == 3 * (4 + 5)
    assert work.units == 3 * 5


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("who", attention.contests()[0].contestants, ids=name_of)
def test_attention_runs_forward_and_backward(who, backward):
    sizes = {"length": 40, "window": 8, "heads": 2, "width": 4, "backward": backward}
    work = attention.prepare(who, sizes)
    out = work.step()
    assert (out is None) if backward else (out.shape == (1, 2, 40, 4))
    seen = 40 * 8 - 8 * 7 // 2 if who.how == OURS else 40 * 41 // 2
    assert work.flops == (14 if backward else 4) * seen * 8


def test_memory_recomputes_what_it_says():
    from kinfolk.bench import memory

    plain, again, undone = (c for c in memory.contests()[0].contestants if not c.peer)
    sizes = memory.contests()[0].sizes | TOY | {"n_layers": 2}
    works = [memory.prepare(who, sizes) for who in (plain, again, undone)]
    losses = [work.step() for work in works]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] != losses[2]
    assert len({work.parameters for work in works}) == 1
    assert [c.sizes["n_layers"] for c in memory.contests()] == [2, 4, 8, 16]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("contest", [0, 2], ids=["switch", "top-2"])
def test_experts_have_more_weights_and_as_many_active_ones(contest, backward):
    from kinfolk.bench import experts

    sizes = {"d_model": 8, "d_ff": 16, "length": 6, "batch_size": 2, "backward": backward}
    dense, *others = experts.contests()[contest].contestants
    shape = Shape(6)
    dims = Dims(8, 1, 6, 0.0, 2)
    plain = experts.part_of(dense, sizes).cost(dims, shape)
    for who in others:
        work, n = experts.prepare(who, sizes), who.settings["n_experts"]
        assert work.step() is None
        assert work.units == 12
        found = experts.part_of(who, sizes).cost(dims, shape)
        assert found.params == work.parameters
        # choosing is all that costs a token more
        choosing = experts.ROUTERS[who.settings["router"]][0].cost(8, n).flops
        assert found.flops - choosing == pytest.approx(plain.flops, rel=0.05)
    assert [c.settings["n_experts"] for c in others][-3:] == [4, 16, 64]


def test_hard_tokens_take_all_steps_and_easy_ones_the_fewest():
    from kinfolk.bench import halting

    sizes = halting.SIZES | {"d_model": 32, "d_ff": 64, "vocab_size": 40, "length": 50, "batch_size": 2}
    fixed, *mixed = halting.contests()[0].contestants
    steps = [halting.prepare(who, sizes).step() for who in mixed]
    assert steps[0] == 1
    assert steps[-1] == halting.prepare(fixed, sizes).step() == 6
    for who, found in zip(mixed, steps, strict=True):
        assert found == pytest.approx(1 + 5 * who.settings["hard"], abs=0.7)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_subject_names_a_contestant_to_stand_beside(subject):
    module = importlib.import_module(f"kinfolk.bench.{subject}")
    for contest in module.contests(long=True):
        assert contest.beside in [c.name for c in contest.contestants]
        assert any(not c.peer for c in contest.contestants)
        beside = contest.among("beside")
        assert beside.beside == contest.beside
        assert {c.name for c in beside.contestants if c.peer} <= {contest.beside}
        assert [c for c in beside.contestants if not c.peer] == list(contest.among("none").contestants)
        assert [c.peer for c in contest.among("none").contestants] == [False] * len(contest.among("none").contestants)


def test_startup_runs_a_command():
    from kinfolk.bench import startup

    work = startup.prepare(BenchContestant("nothing", settings={"arguments": ["-c", "pass"]}), {"steps": 1})
    assert work.step() is None
