"""Maps that are exchanged: nothing exchanged is nothing changed, and what is stored is what is computed."""

import copy

import pytest
import torch
from torch.nn import functional as F

import kinfolk as kf
from kinfolk.core.batch import Batch
from kinfolk.core.errors import SpecError
from kinfolk.core.plain import dumps, loads
from kinfolk.core.rng import Rng
from kinfolk.data import Tokenizer
from kinfolk.layers.feed_forwards.feed_forward import Dense
from kinfolk.layers.linear_maps import Int8, LowRank, Rank, WholeMap, bare, quantise
from kinfolk.layers.mixers.attention import Attention
from kinfolk.layers.module import Linear
from kinfolk.layers.pruned import Pruned, PrunedMap
from kinfolk.models.cost import cost
from kinfolk.models.model import Model
from kinfolk.objectives.learner import Learner
from kinfolk.objectives.objective import Vocabulary
from kinfolk.use.compress import exchanging
from kinfolk.use.compress.maps import factorise, factors, places, plain, rank_for, seconds_of
from kinfolk.use.compress.measure import peak
from kinfolk.use.compress.steps import CompressionStep, take
from kinfolk.use.compress.surgery import parts, rebuild, share_layers, weights_of
from kinfolk.use.inspect.removal import gated, gates_of
from kinfolk.use.inspect.sight import see

TOY = {"d_model": 24, "n_layers": 4, "n_heads": 3, "d_ff": 40, "vocab_size": 30, "max_len": 32}
NAMES = ["gpt2", "vanilla", "geglu", "roberta"]
ROWS = [
    [CompressionStep("rank", 0.4)],
    [CompressionStep("int8", "weights")],
    [CompressionStep("rank", 0.4), CompressionStep("int8", "weights")],
]
DONE = [
    CompressionStep("table", 0.4),
    CompressionStep("rank", 0.4),
    CompressionStep("svd", 0.4),
    CompressionStep("int8"),
    CompressionStep("int8", "weights"),
    CompressionStep("share", 2),
]


def quiet(line):
    assert line


def learner(name, double=True, **changes):
    recipe = kf.relative(name, size="tiny", **(TOY | changes))
    model = kf.build(recipe, seed=3).eval()
    return Learner(model.double() if double else model, recipe.objective, Vocabulary(30))


def batch(learn, n=3):
    tokens = torch.randint(7, 30, (n, 12), generator=torch.Generator().manual_seed(1))
    return learn.prepare(Batch(index=torch.arange(n), tokens=tokens), Rng(0))


def after(learn, *steps):
    model = learn.model
    for step in steps:
        model = take(step, Learner(model.eval(), learn.objective, learn.vocabulary), [batch(learn)], quiet)
    return model.eval()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "step",
    [
        CompressionStep("rank", 0.0),
        CompressionStep("table", 0.0),
        CompressionStep("share", 1),
        CompressionStep("plain"),
    ],
    ids=str,
)
def test_nothing_exchanged_is_nothing_changed(name, step):
    learn = learner(name)
    given = batch(learn)
    assert torch.equal(after(learn, step).run(given).hidden, learn.model.run(given).hidden)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("blind", [True, False])
def test_full_rank_computes_the_same(name, blind):
    learn = learner(name)
    given, spec, weights = batch(learn), learn.model.spec, weights_of(learn.model)
    seconds = None if blind else seconds_of(learn, [given])
    for place, own in places(learn.model).items():
        full = {n: min(m.in_features, m.out_features) for n, m in own.items()}
        spec, weights = factorise(spec, weights, place, full, None if seconds is None else seconds[place])
    same = rebuild(spec, weights).eval()
    assert all(isinstance(part, LowRank) for _, part in parts(same.spec))
    torch.testing.assert_close(same.run(given).hidden, learn.model.run(given).hidden, rtol=1e-9, atol=1e-10)


def test_a_lower_rank_is_as_far_away_as_eckart_and_young_say():
    weight = torch.randn(13, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outer, inner = factors(weight, 4)
    values = torch.linalg.svdvals(weight)
    torch.testing.assert_close((weight - outer @ inner).norm(), values[4:].norm(), rtol=1e-10, atol=0)
    # both have the size of the root of the singular values
    torch.testing.assert_close(outer.norm(dim=0), values[:4].sqrt(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(inner.norm(dim=1), values[:4].sqrt(), rtol=1e-10, atol=1e-12)


def test_data_decides_which_rank_is_kept():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(11, 9, dtype=torch.float64, generator=generator)
    x = torch.randn(500, 9, dtype=torch.float64, generator=generator) * torch.logspace(-2, 1, 9, dtype=torch.float64)

    def error(second):
        outer, inner = factors(weight, 3, second)
        return float((x @ (weight - outer @ inner).mT).square().mean())

    best = torch.linalg.svdvals(x @ weight.mT)[3:].square().sum() / (500 * 11)
    assert error(x.mT @ x / 500) == pytest.approx(float(best), rel=1e-8)
    assert error(x.mT @ x / 500) < 0.5 * error(None)


def test_second_moments_are_those_of_what_goes_in():
    learn = learner("gpt2")
    given, seen = batch(learn), []
    found = seconds_of(learn, [given])
    place, own = next(iter(places(learn.model).items()))
    handle = own["qkv"].register_forward_pre_hook(lambda module, x: seen.append(x[0]))
    with torch.no_grad():
        learn(given)
    handle.remove()
    x = seen[0].flatten(0, 1)
    torch.testing.assert_close(found[place]["qkv"], x.mT @ x / len(x), rtol=1e-10, atol=1e-12)
    assert {name for own in found.values() for name in own} == {"qkv", "out", "widen", "narrow"}
    assert all(float(c.diagonal().sum()) > 0 for own in found.values() for c in own.values())
    assert all(type(m) is Linear for own in places(learn.model).values() for m in own.values())


@pytest.mark.parametrize(("d_in", "d_out"), [(24, 24), (24, 72), (40, 24)])
def test_a_rank_saves_what_it_says(d_in, d_out):
    for share in (0.25, 0.5, 0.9):
        rank = rank_for(d_in, d_out, share)
        assert rank * (d_in + d_out) <= (1 - share) * d_in * d_out or rank == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", DONE, ids=str)
def test_what_is_left_is_an_ordinary_model(name, step, tmp_path):
    learn = learner(name, double=False)
    given, model = batch(learn), after(learner(name, double=False), step)
    assert loads(Model, dumps(model.spec)) == model.spec
    assert cost(model.spec, 8).params == model.n_params
    kf.save(model, tmp_path / "m")
    with torch.no_grad():
        said = model.run(given).hidden
        assert torch.equal(kf.load(tmp_path / "m").eval().run(given).hidden, said)
        assert torch.equal(copy.deepcopy(model).run(given).hidden, said)
    other = Learner(model.train(), learn.objective, learn.vocabulary)
    other(given).total.backward()
    moving = [p for p in model.parameters() if p.requires_grad]
    assert moving
    assert all(p.grad is not None for p in moving)


@pytest.mark.parametrize(
    "steps",
    [
        [CompressionStep("rank", 0.4)],
        [CompressionStep("int8", "weights")],
        [CompressionStep("rank", 0.4), CompressionStep("int8", "weights")],
    ],
)
def test_plain_maps_compute_what_others_did(steps):
    learn = learner("vanilla")
    given, model = batch(learn), after(learn, *steps)
    same = plain(model).eval()
    assert same.spec == learn.model.spec
    torch.testing.assert_close(same.run(given).hidden, model.run(given).hidden, rtol=1e-10, atol=1e-11)


def test_cached_decoding_is_a_full_pass_with_exchanged_maps():
    learn = learner("gpt2")
    model = after(learn, CompressionStep("rank", 0.4), CompressionStep("int8", "weights"))
    tokens = batch(learn).tokens
    state, said = model.new_state(len(tokens), 12), []
    with torch.no_grad():
        for i in range(tokens.shape[1]):
            said.append(model(tokens[:, i : i + 1], state=state).hidden)
        torch.testing.assert_close(torch.cat(said, 1), model(tokens).hidden, rtol=1e-9, atol=1e-10)


def test_whole_numbers_are_off_by_half_a_step_at_most():
    weight = torch.randn(17, 9, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    whole, step = quantise(weight)
    assert whole.dtype == torch.int8
    assert int(whole.abs().max()) == 127
    assert bool(((weight - whole * step[:, None]).abs() <= step[:, None] * 0.5001).all())
    torch.testing.assert_close(step[0], weight[0].abs().max() / 127)
    assert not whole[3].any()


def test_the_quick_way_is_that_of_the_formula():
    linear = Linear(16, 12)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    one = WholeMap(linear, activations=True)
    whole, step = quantise(linear.weight.detach())
    one.whole.data, one.step.data, one.offset.data = whole, step, linear.bias.detach()
    if not one.fast:
        pytest.skip("this processor has no kernel for whole numbers")
    with torch.no_grad():
        quick, slow = one(x), F.linear(x, one.weight, one.bias)
    # 7 bits for all of x, of which 0 is one number
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    s = (high - low) / 127
    z = round(-low / s)
    q_x = (x / s).round().add(z).clamp(0, 127)
    want = s * step * ((q_x - z) @ whole.float().mT) + linear.bias.detach()
    torch.testing.assert_close(quick, want, rtol=1e-4, atol=1e-4)
    assert 0 < float((quick - slow).abs().max()) < 0.1
    # with gradients what goes in is left as it is
    torch.testing.assert_close(one(x), slow)
    with torch.no_grad():
        one.step.mul_(2)
        torch.testing.assert_close(one(x) - one.offset, 2 * (quick - one.offset), rtol=1e-4, atol=1e-4)


def test_a_copy_to_work_with_follows_its_numbers():
    one = WholeMap(Linear(6, 4), activations=False)
    one.draw()
    x = torch.randn(3, 6)
    with torch.no_grad():
        before = one(x)
        assert one.held == 4 * 24
        one.step.mul_(2)
        torch.testing.assert_close(one(x) - one.offset, 2 * (before - one.offset))
        assert one.double()(x.double()).dtype == torch.float64
    assert copy.deepcopy(one).held == 0


def test_a_narrow_table_keeps_the_words_that_occur(monkeypatch):
    learn = learner("gpt2")
    given, table = batch(learn), learn.model.embedding.weight.detach().clone()
    monkeypatch.setattr(exchanging, "rank_for", lambda *sizes: 24)
    torch.testing.assert_close(
        after(learn, CompressionStep("table", 0.5)).run(given).logits, learn.model.run(given).logits
    )
    monkeypatch.setattr(exchanging, "rank_for", lambda *sizes: 6)
    model = after(learn, CompressionStep("table", 0.5))
    now = (model.embedding.table.inner.weight @ model.embedding.table.outer.weight.mT).detach()
    seen = torch.bincount(given.tokens.flatten(), minlength=30)
    errors = (now - table).norm(dim=1) / table.norm(dim=1)
    assert float(errors[seen > 1].mean()) < float(errors[seen == 0].mean())
    assert model.n_params == learn.model.n_params - 30 * 24 + 30 * 6 + 24 * 6
    with pytest.raises(SpecError, match="factorised"):
        after(learn, CompressionStep("table", 0.5), CompressionStep("table", 0.5))


def test_heads_of_exchanged_maps_can_be_looked_at():
    learn = learner("vanilla")
    model = after(learn, CompressionStep("rank", 0.4))
    given = batch(learn)
    gates = gates_of(model)
    assert gates.keys() == gates_of(learn.model).keys()
    free = model.run(given).hidden
    with gated(model, gates):
        assert torch.equal(model.run(given).hidden, free)
    sight = see(model.float(), Tokenizer.byte(), [8, 9, 10], [8, 9])
    assert {one.keys for one in sight.maps} == {"same", "source"}


def test_a_stored_model_of_whole_numbers_is_smaller(tmp_path):
    learn = learner("gpt2", double=False, d_model=48, n_heads=4, d_ff=192)
    sizes = []
    for i, model in enumerate((learn.model, after(learn, CompressionStep("int8")))):
        kf.save(model, tmp_path / str(i))
        sizes.append((tmp_path / str(i) / "model.safetensors").stat().st_size)
    assert sizes[1] < 0.35 * sizes[0]


def test_a_shared_block_is_that_of_a_layer_or_their_mean():
    learn = learner("gpt2")
    model = after(learn, CompressionStep("share", 3))
    assert model.spec.decoder.order == (0, 0, 0, 1)
    assert len(model.spec.decoder.blocks) == 2
    got, old = model.decoder.blocks[0].parts[0].out.weight, [b.parts[0].out.weight for b in learn.model.decoder.blocks]
    assert any(torch.equal(got, one) for one in old[:3]) or torch.allclose(got, sum(old[:3]) / 3)
    assert torch.equal(model.decoder.blocks[1].parts[0].out.weight, old[3])


def test_layers_run_the_block_that_was_chosen():
    learn = learner("gpt2")
    spec, shared = share_layers(learn.model.spec, weights_of(learn.model), "decoder", [1, 2, 3], 3)
    assert spec.decoder.order == (0, 1, 1, 1)
    model, other = rebuild(spec, shared).eval(), learner("gpt2")
    other.model.decoder.order = (0, 3, 3, 3)
    given = batch(learn)
    assert torch.equal(model.run(given).hidden, other.model.run(given).hidden)


def test_blocks_that_are_alike_are_shared_without_a_loss():
    learn = learner("gpt2")
    for i in (1, 2, 3):
        learn.model.decoder.blocks[i].load_state_dict(learn.model.decoder.blocks[i // 2 * 2].state_dict())
    given = batch(learn)
    torch.testing.assert_close(
        after(learn, CompressionStep("share", 2)).run(given).hidden, learn.model.run(given).hidden
    )


def test_blocks_that_differ_cannot_be_shared():
    model = after(learner("gpt2"), CompressionStep("heads", 0.5))
    learn = Learner(model, learner("gpt2").objective, Vocabulary(30))
    assert len({bare(b.parts[0]).n_heads for b in model.spec.decoder.blocks}) > 1
    with pytest.raises(SpecError, match="built differently"):
        after(learn, CompressionStep("share", 4))


def test_heads_are_cut_before_maps_are_exchanged():
    learn = learner("gpt2")
    other = Learner(after(learn, CompressionStep("rank", 0.5)), learn.objective, learn.vocabulary)
    with pytest.raises(SpecError, match="heads"):
        after(other, CompressionStep("heads", 0.5))
    with pytest.raises(SpecError, match="no plain maps"):
        after(learn, CompressionStep("int8"), CompressionStep("int8"))


def test_wrong_specs_are_refused_where_they_are_made():
    part = Dense(d_ff=40)
    with pytest.raises(SpecError, match="rank: 0 is not allowed; at least 1"):
        Rank(map="widen", rank=0)
    with pytest.raises(SpecError, match="activations"):
        Int8(part=part, activations="int4")
    with pytest.raises(SpecError, match="factorise plain maps"):
        LowRank(part=Int8(part=part), ranks=())
    with pytest.raises(SpecError, match="no map 'wide'"):
        LowRank(part=part, ranks=(Rank(map="wide", rank=2),)).build(learner("gpt2").model.spec.dims)
    for wrong in ({"share": 1.0}, {"share": 0.5, "method": "luck"}, {"share": 0.5, "warm": 0.8}):
        with pytest.raises(SpecError):
            Pruned(part=part, **wrong)


def test_memory_is_what_a_pass_holds():
    learn = learner("gpt2", double=False)
    small, large = (peak(learn.model, batch(learn, n)) for n in (2, 8))
    assert 3 * small < large
    hidden = 8 * 11 * 24 * 4
    assert large > hidden
    attention = Attention(n_heads=3)
    assert bare(Int8(part=LowRank(part=attention, ranks=()))) == attention


def pruned(method, share=0.5, **more):
    spec = Pruned(part=Dense(d_ff=4), share=share, method=method, **more)
    linear = Linear(8, 6)
    return spec, PrunedMap(spec, linear)


def test_the_schedule_is_cubic_between_its_ends():
    spec, _ = pruned("movement", 0.8, warm=0.2, cool=0.3)
    assert [spec.gone(p) for p in (0.0, 0.2, 0.7, 1.0)] == [0.0, 0.0, 0.8, 0.8]
    assert spec.gone(0.45) == pytest.approx(0.8 * (1 - 0.5**3))
    gone = [spec.gone(p / 50) for p in range(51)]
    assert gone == sorted(gone)


@pytest.mark.parametrize("method", ["movement", "magnitude"])
def test_as_many_weights_are_gone_as_were_asked_for(method):
    _, one = pruned(method, 0.75)
    for progress, gone in ((0.0, 0), (1.0, 36)):
        one.at_progress(progress)
        assert int((one.weight == 0).sum()) == gone
    one.at_progress(0.0)
    assert torch.equal(one.weight, one.whole.weight)


def test_magnitude_keeps_what_torch_keeps():
    from torch.nn.utils import prune

    _, one = pruned("magnitude", 0.6)
    other = Linear(8, 6)
    other.load_state_dict(one.whole.state_dict())
    prune.l1_unstructured(other, "weight", amount=int(0.6 * 48))
    assert torch.equal(one.eval().weight, other.weight)


def test_scores_get_the_gradient_that_the_mask_would_get():
    _, one = pruned("movement", 0.5)
    one.scores.data.normal_(generator=torch.Generator().manual_seed(0))
    one.at_progress(1.0)
    x = torch.randn(5, 8)
    one(x).square().sum().backward()
    mask = one.mask().requires_grad_()
    weight = one.whole.weight.detach().requires_grad_()
    F.linear(x, weight * mask, one.bias.detach()).square().sum().backward()
    torch.testing.assert_close(one.scores.grad, mask.grad)
    torch.testing.assert_close(one.whole.weight.grad, weight.grad)
    assert not one.whole.weight.grad[mask == 0].any()


def test_a_small_weight_that_grows_survives_movement_only():
    kept = {}
    for method in ("movement", "magnitude"):
        torch.manual_seed(0)
        _, one = pruned(method, 0.5, warm=0.0, cool=0.0)
        with torch.no_grad():
            one.whole.weight.fill_(0.5)
            # the first input matters and its weights are small, the last does not and its weights are large
            one.whole.weight[:, 0] = 0.1
            one.whole.weight[:, -1] = 1.0
            one.whole.bias.zero_()
        want = torch.zeros(6, 8)
        want[:, :4] = 0.6
        optimiser = torch.optim.SGD(one.parameters(), lr=0.005)
        for step in range(60):
            one.at_progress(step / 60)
            x = torch.randn(64, 8)
            optimiser.zero_grad()
            (one(x) - x @ want.mT).square().sum(1).mean().backward()
            optimiser.step()
            if step == 5:
                one.gone = 0.5
                kept[method] = one.mask()
    assert bool(kept["movement"][:, 0].all())
    assert not bool(kept["magnitude"][:, 0].any())
    assert not bool(kept["movement"][:, -1].any())
    assert bool(kept["magnitude"][:, -1].all())
